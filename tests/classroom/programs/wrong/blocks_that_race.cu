// expect: data race: line 4 writes d_sum\[0\] in different threads, of different blocks \(add, launched in line 14: block \(1, 0\)
#include <stdio.h>

__global__ void add(const float* x, float* sum) { sum[0] += x[blockIdx.x]; }

int main(void)
{
    float x[4] = {1, 2, 3, 4}, *d_x, *d_sum, sum = 0;
    cudaMalloc((void**)&d_x, sizeof(x));
    cudaMalloc((void**)&d_sum, sizeof(float));
    cudaMemcpy(d_x, x, sizeof(x), cudaMemcpyHostToDevice);
    cudaMemcpy(d_sum, &sum, sizeof(float), cudaMemcpyHostToDevice);

    add<<<4, 1>>>(d_x, d_sum);
    cudaMemcpy(&sum, d_sum, sizeof(float), cudaMemcpyDeviceToHost);
    printf("%g\n", sum);
    cudaFree(d_x);
    cudaFree(d_sum);
}
