// expect: first CUDA call that failed: cudaMemcpy in line 12: invalid argument .*the program looks at its error
#include <stdio.h>

__global__ void add(float* x) { x[threadIdx.x] += 1; }

int main(void)
{
    float x[8] = {}, *d_x;
    cudaMalloc((void**)&d_x, sizeof(x));
    cudaMemset(d_x, 0, sizeof(x));
    add<<<1, 8>>>(d_x);
    cudaError_t err = cudaMemcpy(x, d_x, sizeof(x), cudaMemcpyHostToDevice);
    printf("copy: %s\n", cudaGetErrorString(err));
    cudaFree(d_x);
}
