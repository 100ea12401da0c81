// SPDX-License-Identifier: MIT
// One thread a row.
// Each thread computes one row of C: PMPP, chapter 3, exercise 1a.
// ? There is one index: the row.
// ? Three loops would be the CPU's program. Which one is gone?
// lab: block(32) grid((n + 31) / 32)
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    // one row of C
}
