// SPDX-License-Identifier: MIT
// lab: block(16, 16)
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || column >= m) return;
    float sum = 0;
    for (int k = 0; k < l; ++k) sum += a[row * l + k] * b[k * m + column];
    c[row * m + column] = sum;
}
