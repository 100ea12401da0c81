// SPDX-License-Identifier: MIT
// "CUDA in Two-dimension": P = M·N on one CPU core, from global memory and through shared memory: mm2d [WIDTH [cpu|global|shared]]
#include <string.h>
#include <time.h>

#include "lecture.h"

#define TILE 32

__global__ void global_memory(const float* M, const float* N, float* P, int width)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;  // the column
    int y = blockIdx.y * blockDim.y + threadIdx.y;  // the row
    if (x >= width || y >= width) return;
    float sum = 0;
    for (int k = 0; k < width; ++k) sum += M[(size_t)y * width + k] * N[(size_t)k * width + x];
    P[(size_t)y * width + x] = sum;
}

__global__ void shared_memory(const float* M, const float* N, float* P, int width)
{
    __shared__ float M_tile[TILE][TILE], N_tile[TILE][TILE];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    float sum = 0;
    for (int begin = 0; begin < width; begin += TILE) {
        int column = begin + threadIdx.x, row = begin + threadIdx.y;
        M_tile[threadIdx.y][threadIdx.x] = y < width && column < width ? M[(size_t)y * width + column] : 0;
        N_tile[threadIdx.y][threadIdx.x] = row < width && x < width ? N[(size_t)row * width + x] : 0;
        __syncthreads();
        for (int k = 0; k < TILE; ++k) sum += M_tile[threadIdx.y][k] * N_tile[k][threadIdx.x];
        __syncthreads();
    }
    if (x < width && y < width) P[(size_t)y * width + x] = sum;
}

typedef void Kernel(const float* M, const float* N, float* P, int width);

static float on_cpu(const float* M, const float* N, float* P, int width)
{
    clock_t began = clock();
    for (int y = 0; y < width; ++y)
        for (int x = 0; x < width; ++x) {
            float sum = 0;
            for (int k = 0; k < width; ++k) sum += M[(size_t)y * width + k] * N[(size_t)k * width + x];
            P[(size_t)y * width + x] = sum;
        }
    return 1e3f * (clock() - began) / CLOCKS_PER_SEC;
}

// The time is that of the allocations, the copies to the device, the kernel, and the copy back.
static float on_gpu(Kernel* kernel, const float* M, const float* N, float* P, int width)
{
    size_t bytes = sizeof(float) * width * width;
    float *Md, *Nd, *Pd, milliseconds = 0;
    cudaEvent_t start, stop;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    CUDA(cudaEventRecord(start));
    CUDA(cudaMalloc(&Md, bytes));
    CUDA(cudaMalloc(&Nd, bytes));
    CUDA(cudaMalloc(&Pd, bytes));
    CUDA(cudaMemcpy(Md, M, bytes, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(Nd, N, bytes, cudaMemcpyHostToDevice));
    unsigned blocks = blocks_for(width, TILE);
    kernel<<<dim3(blocks, blocks), dim3(TILE, TILE)>>>(Md, Nd, Pd, width);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(P, Pd, bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaEventRecord(stop));
    CUDA(cudaEventSynchronize(stop));
    CUDA(cudaEventElapsedTime(&milliseconds, start, stop));
    CUDA(cudaFree(Md));
    CUDA(cudaFree(Nd));
    CUDA(cudaFree(Pd));
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(stop));
    return milliseconds;
}

int main(int argc, char* argv[])
{
    const char* which = argc > 2 ? argv[2] : "";
    bool known = !*which || !strcmp(which, "cpu") || !strcmp(which, "global") || !strcmp(which, "shared");
    if (argc > 3 || !known) {
        fprintf(stderr, "usage: %s [WIDTH [cpu|global|shared]]\n", argv[0]);
        return EXIT_FAILURE;
    }
    int width = size_of_argument(argc, argv, 1, 1024);
    float *M = host_matrix<float>(width, width), *N = host_matrix<float>(width, width), *P = host_matrix<float>(width, width);
    // The document's elements, x + y·width; in N transposed, since M·M would hide that a kernel takes one for the other.
    for (int y = 0; y < width; ++y)
        for (int x = 0; x < width; ++x) M[(size_t)y * width + x] = N[(size_t)x * width + y] = x + (float)y * width;

    bool right = true;
    const char* names[] = {"cpu", "global", "shared"};
    for (int i = 0; i < 3; ++i) {
        if (*which && strcmp(which, names[i])) continue;
        float milliseconds = i == 0 ? on_cpu(M, N, P, width) : on_gpu(i == 1 ? global_memory : shared_memory, M, N, P, width);
        bool is_right = is_product(width, width, width, M, N, P);
        printf("%-7sTime to generate:  %3.1f ms%s\n", names[i], milliseconds, is_right ? "" : ", WRONG");
        right = right && is_right;
    }
    free(M);
    free(N);
    free(P);
    return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
