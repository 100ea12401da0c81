// SPDX-License-Identifier: MIT
// The argument of all kernels: a row-major matrix or submatrix, whose `stride` is the leading dimension in elements. And the
// mapping of thread blocks to tiles of C.
#pragma once

using Size = long long;  // matrices may have more than 2³¹ elements

template <typename T>
struct Matrix {
    T* data;
    Size rows, columns, stride;

    __device__ T& operator()(Size row, Size column) const { return data[row * stride + column]; }
    __device__ bool holds(Size row, Size column) const { return row < rows && column < columns; }
};

__device__ inline Size ceil_div(Size whole, Size piece) { return (whole + piece - 1) / piece; }

struct TilePosition {
    Size row, column;
};

// The tile of C of this thread block (threadblock swizzling): consecutive blocks, which run at the same time, take GROUP tiles of
// one column of tiles, then those of the next column. Together they read few rows of A and few columns of B, which stay in the L2
// cache.
template <int ROWS, int COLUMNS, int GROUP = 8, typename T>
__device__ TilePosition tile_position(const Matrix<T>& c, Size number)
{
    Size down = ceil_div(c.rows, ROWS), across = ceil_div(c.columns, COLUMNS);
    Size group = number / (GROUP * across), within = number % (GROUP * across);
    Size height = min(down - group * GROUP, Size(GROUP));
    return {(group * GROUP + within % height) * ROWS, within / height * COLUMNS};
}

template <int ROWS, int COLUMNS, int GROUP = 8, typename T>
__device__ TilePosition tile_position(const Matrix<T>& c)
{
    return tile_position<ROWS, COLUMNS, GROUP>(c, blockIdx.x);
}
