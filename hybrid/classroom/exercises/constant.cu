// SPDX-License-Identifier: MIT
// Weights in constant memory.
// out[i] is the sum of in[i - 2] to in[i + 2], multiplied by 1, 2, 4, 2 and 1; the two elements at each end may be anything. All
// threads read the same weight at once: put the weights into constant memory, and load none from global memory.
// ? Constant memory is declared outside of functions: __constant__ float name[5] = {…};
// ? The kernel then needs no parameter for the weights.
// lab: block(256) grid((n + 255) / 256)
__global__ void weighted(const float* in, const float* weights, float* out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < 2 || i >= n - 2) return;
    float sum = 0;
    for (int d = -2; d <= 2; ++d) sum += weights[d + 2] * in[i + d];
    out[i] = sum;
}
