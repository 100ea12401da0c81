// expect: segmentation fault: line 12 of the host code uses d_x, which is in device memory
#include <stdio.h>

__global__ void set(int* x) { x[threadIdx.x] = 1; }

int main(void)
{
    int* d_x;
    cudaMalloc((void**)&d_x, 4 * sizeof(int));
    set<<<1, 4>>>(d_x);
    cudaDeviceSynchronize();
    printf("%d\n", d_x[0]);
}
