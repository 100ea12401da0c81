// expect: uninitialised: line 7 reads part\[31\] in shared memory, which its block has not written
extern __shared__ float part[];
__global__ void turn(float* x)
{
    if (threadIdx.x) part[threadIdx.x - 1] = threadIdx.x;
    __syncthreads();
    x[threadIdx.x] = part[31 - threadIdx.x];
}
int main()
{
    float* x;
    cudaMalloc(&x, 32 * sizeof(float));
    turn<<<1, 32, 32 * sizeof(float)>>>(x);
    cudaDeviceSynchronize();
    cudaFree(x);
}
