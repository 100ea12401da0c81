// expect: illegal address: line 6 reads host memory in a kernel
// expect: cudaMemcpy in line 15, the first call that waits for the kernel: an illegal memory access
#include <stdio.h>
#include <stdlib.h>

__global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }

int main(void)
{
    float *x = (float*)malloc(8 * sizeof(float)), *d_y, y[8];
    for (int i = 0; i < 8; ++i) x[i] = i;
    cudaMalloc((void**)&d_y, sizeof(y));
    twice<<<1, 8>>>(x, d_y);
    printf("launched: %s\n", cudaGetErrorString(cudaGetLastError()));
    if (cudaMemcpy(y, d_y, sizeof(y), cudaMemcpyDeviceToHost)) printf("not copied\n");
    cudaFree(d_y);
    free(x);
}
