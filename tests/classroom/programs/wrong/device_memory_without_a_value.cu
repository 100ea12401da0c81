// expect: uninitialised: line 6 reads d_x\[1\], which no copy, cudaMemset or kernel has written
// expect: uninitialised: line 15 copies d_y\[7\] to the host, which no copy, cudaMemset or kernel has written
__global__ void copy(const double* x, double* y)
{
    int i = threadIdx.x;
    if (i < 7) y[i] = x[i];
}

int main()
{
    double *d_x, *d_y, y[8] = {5};
    cudaMalloc(&d_x, sizeof(double) * 8), cudaMemcpy(d_x, y, sizeof(double), cudaMemcpyHostToDevice);
    cudaMalloc(&d_y, sizeof(double) * 8);
    copy<<<1, 8>>>(d_x, d_y);
    cudaMemcpy(y, d_y, sizeof(y), cudaMemcpyDeviceToHost);
    cudaFree(d_x);
    cudaFree(d_y);
}
