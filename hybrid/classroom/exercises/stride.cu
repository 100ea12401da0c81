// SPDX-License-Identifier: MIT
// A tile as a matrix of its own.
// The kernel of Hochberg's module takes each tile as a matrix: where it begins, how large it is, and how far apart its rows
// lie. The function that says so is wrong. At the edges tiles are smaller.
// ? The rows of a tile lie as far apart as those of the matrix that it is a part of.
// ? The tile begins BLOCK_SIZE rows and columns further for each tile before it.
#define BLOCK_SIZE 16
typedef struct {
    int width, height, stride;
    float* elements;
} Matrix;

__device__ Matrix tile_of(Matrix parent, int row, int column)
{
    Matrix tile = {BLOCK_SIZE, BLOCK_SIZE, BLOCK_SIZE, parent.elements};
    return tile;
}

__device__ float value_or_zero(Matrix M, int row, int column)
{
    return row < M.height && column < M.width ? M.elements[row * M.stride + column] : 0;
}

__global__ void MatMulKernel(Matrix A, Matrix B, Matrix C)
{
    __shared__ float As[BLOCK_SIZE][BLOCK_SIZE], Bs[BLOCK_SIZE][BLOCK_SIZE];
    int row = threadIdx.y, column = threadIdx.x;
    Matrix C_tile = tile_of(C, blockIdx.y, blockIdx.x);
    float sum = 0;
    for (int t = 0; t * BLOCK_SIZE < A.width; ++t) {
        As[row][column] = value_or_zero(tile_of(A, blockIdx.y, t), row, column);
        Bs[row][column] = value_or_zero(tile_of(B, t, blockIdx.x), row, column);
        __syncthreads();
        for (int k = 0; k < BLOCK_SIZE; ++k) sum += As[row][k] * Bs[k][column];
        __syncthreads();
    }
    if (row < C_tile.height && column < C_tile.width) C_tile.elements[row * C_tile.stride + column] = sum;
}
