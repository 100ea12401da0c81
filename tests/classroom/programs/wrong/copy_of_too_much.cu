// expect: first CUDA call that failed: cudaMemcpy in line 10: invalid argument \(cudaErrorInvalidValue\); the program does not look
#include <stdlib.h>

__global__ void add(double* x) { x[threadIdx.x] += 1; }

int main(void)
{
    double x[10] = {}, *d_x;
    cudaMalloc(&d_x, 10);
    cudaMemcpy(d_x, x, sizeof(x), cudaMemcpyHostToDevice);
    cudaMemset(d_x, 0, 8);
    add<<<1, 1>>>(d_x);
    cudaFree(d_x);
}
