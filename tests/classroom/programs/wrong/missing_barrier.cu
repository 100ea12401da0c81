// expect: data race: line 8 writes and line 9 reads s\[\d+\], in different threads of a block, and no __syncthreads\(\) stands between them
#include <stdio.h>

__global__ void turn(float* x)
{
    __shared__ float s[64];
    int i = threadIdx.x;
    s[i] = x[i];
    x[i] = s[63 - i];
}

int main(void)
{
    float x[64] = {}, *d_x;
    cudaMalloc((void**)&d_x, sizeof(x));
    cudaMemcpy(d_x, x, sizeof(x), cudaMemcpyHostToDevice);
    turn<<<1, 64>>>(d_x);
    cudaMemcpy(x, d_x, sizeof(x), cudaMemcpyDeviceToHost);
    cudaFree(d_x);
}
