// expect: uninitialised: line 8 reads d_a\[0\]
// expect: data race: line 8 writes d_c\[0\]
// expect: out of bounds: line 9 writes d_c\[8\], and it has 8 elements
// expect: first CUDA call that failed: cudaMemcpy in line 20: invalid argument .*does not look
// expect: wrong$
__global__ void work(const float* a, float* c, int n)
{
    if (threadIdx.x < n) c[0] = a[threadIdx.x];
    if (threadIdx.x == n) c[n] = 0;
}

int main()
{
    const int n = 8;
    float *d_a, *d_b, *d_c, c[n];
    // the line below has two calls
    cudaMalloc(&d_a, n * sizeof(float));
    cudaMalloc(&d_b, n * sizeof(float)), cudaMalloc(&d_c, n * sizeof(float));
    cudaMemset(d_b, 0, n);
    cudaMemcpy(d_b, c, sizeof(c), cudaMemcpyDeviceToHost);
    work<<<1, n + 1>>>(d_a, d_c, n);
    cudaMemcpy(c, d_c, sizeof(c), cudaMemcpyDeviceToHost);
    cudaFree(d_a);
    cudaFree(d_a);
}
