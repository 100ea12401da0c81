// expect: divergent barrier: block \(0, 0\), thread \(\d+, 0\): waits at the barrier in divergent_barrier.cu:8, but thread \(\d+, 0\) has left the kernel
// expect: cudaDeviceSynchronize in line 19, the first call that waits for the kernel: unspecified launch failure
__global__ void sum(float* x, int n)
{
    __shared__ float s[8];
    if (threadIdx.x >= n) return;
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[0];
}

int main()
{
    float* d_x;
    cudaMalloc(&d_x, 8 * sizeof(float));
    cudaMemset(d_x, 0, 8 * sizeof(float));

    sum<<<1, 8>>>(d_x, 6);
    cudaDeviceSynchronize();
    cudaFree(d_x);
}
