// SPDX-License-Identifier: MIT
// The tiled kernel as the lectures write it, for python -m hybrid.lab run tiled.cu
#define TILE_WIDTH 16
__global__ void MatrixMulKernel(float* M, float* N, float* P, int Width)
{
    __shared__ float Ms[TILE_WIDTH][TILE_WIDTH], Ns[TILE_WIDTH][TILE_WIDTH];
    int x = threadIdx.x, y = threadIdx.y;
    int row = blockIdx.y * TILE_WIDTH + y, column = blockIdx.x * TILE_WIDTH + x;
    float sum = 0;
    for (int k = 0; k < Width; k += TILE_WIDTH) {
        Ms[y][x] = row < Width && k + x < Width ? M[row * Width + k + x] : 0;
        Ns[y][x] = k + y < Width && column < Width ? N[(k + y) * Width + column] : 0;
        __syncthreads();
        for (int e = 0; e < TILE_WIDTH; ++e) sum += Ms[y][e] * Ns[e][x];
        __syncthreads();
    }
    if (row < Width && column < Width) P[row * Width + column] = sum;
}
