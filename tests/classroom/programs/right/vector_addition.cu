// stdout: 30 of 30 sums are right
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

__global__ void add(const float* x, const float* y, float* z, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = x[i] + y[i];
}

int main()
{
    const int n = 30;
    size_t bytes = n * sizeof(float);
    float *x = (float*)malloc(bytes), *y = (float*)malloc(bytes), *z = (float*)malloc(bytes);
    for (int i = 0; i < n; ++i) {
        x[i] = i;
        y[i] = 2 * i;
    }
    float *d_x, *d_y, *d_z;
    cudaMalloc((void**)&d_x, bytes);
    cudaMalloc((void**)&d_y, bytes);
    cudaMalloc((void**)&d_z, bytes);
    cudaMemcpy(d_x, x, bytes, cudaMemcpyHostToDevice);
    cudaMemcpy(d_y, y, bytes, cudaMemcpyHostToDevice);
    add<<<(n + 7) / 8, 8>>>(d_x, d_y, d_z, n);
    cudaMemcpy(z, d_z, bytes, cudaMemcpyDeviceToHost);
    int right = 0;
    for (int i = 0; i < n; ++i) right += z[i] == 3 * i;
    printf("%d of %d sums are right\n", right, n);
    cudaFree(d_x);
    cudaFree(d_y);
    cudaFree(d_z);
    free(x);
    free(y);
    free(z);
    return right != n;
}
