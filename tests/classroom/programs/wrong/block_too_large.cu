// expect: first CUDA call that failed: the launch of fill in line 13: invalid configuration argument \(cudaErrorInvalidConfiguration\) \(blocks of 32×33 threads.*; the program does not look at its error
// expect: uninitialised: line 15 copies d_x\[0\] to the host
#include <stdio.h>

__global__ void fill(float* x) { x[threadIdx.y * blockDim.x + threadIdx.x] = 1; }

int main(void)
{
    float x[32 * 33], *d_x;
    cudaMalloc((void**)&d_x, sizeof(x));
    dim3 block(32, 33);

    fill<<<1, block>>>(d_x);
    cudaDeviceSynchronize();
    cudaMemcpy(x, d_x, sizeof(x), cudaMemcpyDeviceToHost);
    cudaFree(d_x);
}
