// A matrix as every kernel here sees it: rows of `columns` elements, `stride` elements from one row to the next.
// A sub-matrix is the same thing with another corner.
#pragma once

using Size = long long;  // positions in a matrix pass 2³¹

template <typename T>
struct Matrix {
    T* data;
    Size rows, columns, stride;

    __device__ T& operator()(Size row, Size column) const { return data[row * stride + column]; }
    __device__ bool holds(Size row, Size column) const { return row < rows && column < columns; }
};

__device__ inline Size pieces(Size whole, Size piece) { return (whole + piece - 1) / piece; }

struct TilePosition {
    Size row, column;
};

// The block's tile of C. Blocks that run at the same time get tiles close to each other, GROUP rows of tiles high, so that
// together they read few rows of A and columns of B, and find them in the L2 cache.
template <int ROWS, int COLUMNS, int GROUP = 8, typename T>
__device__ TilePosition tile_position(const Matrix<T>& c)
{
    Size down = pieces(c.rows, ROWS), across = pieces(c.columns, COLUMNS);
    Size group = blockIdx.x / (GROUP * across), within = blockIdx.x % (GROUP * across);
    Size height = min(down - group * GROUP, Size(GROUP));
    return {(group * GROUP + within % height) * ROWS, within / height * COLUMNS};
}
