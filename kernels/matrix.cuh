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
