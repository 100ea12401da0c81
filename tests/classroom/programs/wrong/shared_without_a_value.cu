// expect: uninitialised: line 8 reads s\[7\] in shared memory, which its block has not written
// expect: out of bounds: line 9 uses s\[n\] with n = 8: 0 to 7 are there
__global__ void sum(float* x, int n)
{
    __shared__ float s[8];
    if (threadIdx.x < 7) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) x[0] = s[7];
    if (threadIdx.x == 7) s[n] = 0;
}

int main()
{
    float* d_x;
    cudaMalloc(&d_x, 8 * sizeof(float));
    cudaMemset(d_x, 0, 8 * sizeof(float));
    sum<<<1, 8>>>(d_x, 8);
    cudaDeviceSynchronize();
    cudaFree(d_x);
}
