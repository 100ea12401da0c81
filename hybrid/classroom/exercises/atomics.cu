// SPDX-License-Identifier: MIT
// A sum by all threads.
// sum[0], which begins as 0, is to be the sum of n numbers. Threads that add at the same time lose each other's additions.
// ? sum[0] += is three steps: load, add, store. Another thread may come between them.
// ? atomicAdd(address, value) does the three as one.
// lab: block(256) grid((n + 255) / 256)
__global__ void sum_of(const int* in, int* sum, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sum[0] += in[i];
}
