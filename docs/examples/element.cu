// SPDX-License-Identifier: MIT
// A thread for each element, all from global memory; see it with python -m hybrid.lab show element
#define TILE_WIDTH 16
__global__ void MatrixMulKernel(float* M, float* N, float* P, int Width)
{
    int row = blockIdx.y * TILE_WIDTH + threadIdx.y, column = blockIdx.x * TILE_WIDTH + threadIdx.x;
    if (row >= Width || column >= Width) return;
    float sum = 0;
    for (int k = 0; k < Width; ++k) sum += M[row * Width + k] * N[k * Width + column];
    P[row * Width + column] = sum;
}
