// SPDX-License-Identifier: MIT
// One thread an element.
// Each thread computes one element of C. There are as many threads as whole blocks need, so some have nothing to do.
// ? The row comes from y, the column from x: blockIdx * blockDim + threadIdx.
// ? A thread beyond C must not touch memory.
// lab: block(16, 16)
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    int row = 0;     // which?
    int column = 0;  // which?
    float sum = 0;
    for (int k = 0; k < l; ++k) sum += a[row * l + k] * b[k * m + column];
    c[row * m + column] = sum;
}
