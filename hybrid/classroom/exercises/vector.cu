// SPDX-License-Identifier: MIT
// A matrix times a vector.
// B and C have a single column: PMPP, chapter 3, exercise 2. Each thread computes one element of C.
// ? m is 1, and need not be used.
// ? The row of A that a thread reads begins at row * l.
// lab: block(32) grid((n + 31) / 32)
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    // one element of the vector c; m is 1
}
