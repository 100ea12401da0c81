// note: never freed: d_y, d_z \(line 14\)
// note: never freed: 3 allocations of line 16, d_t
#include <stdlib.h>

__global__ void add(const float* x, const float* y, float* z) { z[threadIdx.x] = x[threadIdx.x] + y[threadIdx.x]; }

int main()
{
    float *d_x, *d_y, *d_z, *d_t, z[8];
    if (cudaMalloc(&d_x, sizeof(z)) != cudaSuccess) exit(1);
    cudaMemset(d_x, 0, sizeof(z));

    // two calls in a line
    cudaMalloc(&d_y, sizeof(z)), cudaMalloc((void**)(&d_z), sizeof(z));
    cudaMemset(d_y, 0, sizeof(z));
    for (int i = 0; i < 3; ++i) cudaMalloc(&d_t, 4);
    add<<<1, 8>>>(d_x, d_y, d_z);
    cudaMemcpy(z, d_z, sizeof(z), cudaMemcpyDeviceToHost);
    cudaFree(d_x);
    return static_cast<int>(z[7]);
}
