// SPDX-License-Identifier: MIT
// Hochberg's second program: a block computes a tile of C through tiles of A and B in shared memory: multShare A_ROWS A_COLUMNS B_COLUMNS
#include "multiply.h"

// A tile is a matrix of its own, whose rows lie as far apart as those of the matrix that it is taken from: that is its stride.
// At the edges it is smaller.
__device__ Matrix tile_of(Matrix parent, int row, int column)
{
    Matrix tile = parent;
    tile.elements = element(parent, row * BLOCK_SIZE, column * BLOCK_SIZE);
    tile.height = min(BLOCK_SIZE, parent.height - row * BLOCK_SIZE);
    tile.width = min(BLOCK_SIZE, parent.width - column * BLOCK_SIZE);
    return tile;
}

// What lies beyond a tile's edges adds nothing to the sums.
__device__ float value_or_zero(Matrix tile, int row, int column)
{
    return row < tile.height && column < tile.width ? *element(tile, row, column) : 0;
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
        __syncthreads();  // the tiles are complete
        for (int k = 0; k < BLOCK_SIZE; ++k) sum += As[row][k] * Bs[k][column];
        __syncthreads();  // nobody reads them any more
    }
    // Not sooner: a thread outside of C loads elements for the others, and all of a block must reach each barrier.
    if (row < C_tile.height && column < C_tile.width) *element(C_tile, row, column) = sum;
}

int main(int argc, char* argv[]) { return multiply_random_matrices(argc, argv, MatMulKernel); }
