// SPDX-License-Identifier: MIT
// One thread a column.
// Each thread computes one column of C: PMPP, chapter 3, exercise 1b. Look at the sectors: which of the two, a thread a row or
// a thread a column, loads memory better, and why?
// ? There is one index: the column.
// ? Threads of a warp have neighbouring columns, and so do the elements of a row.
// lab: block(32) grid((m + 31) / 32)
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    // one column of C
}
