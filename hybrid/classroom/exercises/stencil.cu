// SPDX-License-Identifier: MIT
// A stencil with a halo.
// out[i] is the sum of in[i - 2] to in[i + 2]; the first two and the last two elements may be anything. Each number is loaded five
// times: let a block load what it needs into shared memory once.
// ? A block of 256 threads needs 260 numbers: two more on each side, the halo.
// ? Some of the threads load one of the halo, besides their own.
// lab: block(256) grid((n + 255) / 256)
#define RADIUS 2
__global__ void stencil(const float* in, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < RADIUS || i >= n - RADIUS) return;
    float sum = 0;
    for (int d = -RADIUS; d <= RADIUS; ++d) sum += in[i + d];
    out[i] = sum;
}
