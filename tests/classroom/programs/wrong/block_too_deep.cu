// expect: the launch of fill in line 10: invalid configuration argument .*blocks of 1×1×65 threads.*; the program looks at its error
#include <stdio.h>

__global__ void fill(float* x) { x[threadIdx.z] = 1; }

int main(void)
{
    float* d_x;
    cudaMalloc((void**)&d_x, 65 * sizeof(float));
    fill<<<1, dim3(1, 1, 65)>>>(d_x);
    cudaError_t error = cudaGetLastError();
    printf("launch: %s\n", cudaGetErrorString(error));
    cudaFree(d_x);
}
