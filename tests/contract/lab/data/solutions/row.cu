// SPDX-License-Identifier: MIT
// lab: block(32) grid((n + 31) / 32)
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    for (int column = 0; column < m; ++column) {
        float sum = 0;
        for (int k = 0; k < l; ++k) sum += a[row * l + k] * b[k * m + column];
        c[row * m + column] = sum;
    }
}
