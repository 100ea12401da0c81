// expect: segmentation fault: line 10 of the host code uses d_x, which is in device memory
#include <string.h>

__global__ void set(int* x) { x[threadIdx.x] = 1; }

static void fetch(int* x, const int* d_x, size_t bytes)
{
    cudaDeviceSynchronize();

    memcpy(x, d_x, bytes);
}

int main(int argc, char**)
{
    int *d_x, x[64];
    cudaMalloc((void**)&d_x, sizeof(x));
    set<<<1, 64>>>(d_x);
    fetch(x, d_x, argc * sizeof(x));
    return x[0];
}
