// SPDX-License-Identifier: MIT
// A sum without atomic operations.
// Each block leaves the sum of its 256 numbers in sums[blockIdx.x], and the host adds those up. Let the threads of a block add in
// pairs, by shared memory or shuffles, and no atomic operation.
// ? Half of the threads add what the other half has, then half of those, and so on: 8 steps for 256 numbers.
// ? All threads pass a __syncthreads() between two steps, also those that have nothing to add.
// lab: block(256) grid((n + 255) / 256)
__global__ void sums_of(const int* in, int* sums, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&sums[blockIdx.x], in[i]);
}
