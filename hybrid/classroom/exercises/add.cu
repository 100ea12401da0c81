// SPDX-License-Identifier: MIT
// A vector addition.
// c[i] = a[i] + b[i] for each of n elements, by a thread each.
// ? The index comes from blockIdx.x, blockDim.x and threadIdx.x.
// ? The last block has threads without an element, which must not touch memory.
// lab: block(256) grid((n + 255) / 256)
__global__ void add(const float* a, const float* b, float* c, int n)
{
    // one element of c
}
