// SPDX-License-Identifier: MIT
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
