// SPDX-License-Identifier: MIT
// Neighbours in a warp.
// This kernel is right, but the threads of a warp go down a column of C. Let them go along a row.
// ? Threads of a warp differ in threadIdx.x first.
// ? Neighbours in memory are neighbours in a row.
// lab: block(32, 8) grid((n + 31) / 32, (m + 7) / 8)
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    int column = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= n || column >= m) return;
    float sum = 0;
    for (int k = 0; k < l; ++k) sum += a[row * l + k] * b[k * m + column];
    c[row * m + column] = sum;
}
