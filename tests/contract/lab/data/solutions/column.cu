// SPDX-License-Identifier: MIT
// lab: block(32) grid((m + 31) / 32)
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= m) return;
    for (int row = 0; row < n; ++row) {
        float sum = 0;
        for (int k = 0; k < l; ++k) sum += a[row * l + k] * b[k * m + column];
        c[row * m + column] = sum;
    }
}
