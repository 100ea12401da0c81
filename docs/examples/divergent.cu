// SPDX-License-Identifier: MIT
// threads of a warp that go different ways: right, and each warp does the loop twice
__global__ void MatrixMulKernel(float* M, float* N, float* P, int Width)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= Width || column >= Width) return;
    float sum = 0;
    if (threadIdx.x % 2 == 0)
        for (int k = 0; k < Width; ++k) sum += M[row * Width + k] * N[k * Width + column];
    else
        for (int k = Width - 1; k >= 0; --k) sum += M[row * Width + k] * N[k * Width + column];
    P[row * Width + column] = sum;
}
