// Up to 16 bytes of a row at once.
#pragma once
#include "matrix.cuh"

// 16 bytes, loaded at once.
template <typename T>
struct Piece;

template <>
struct Piece<float> {
    float of[4];
    __device__ __forceinline__ static Piece at(const float* from)
    {
        float4 four = *reinterpret_cast<const float4*>(from);
        return {four.x, four.y, four.z, four.w};
    }
};

template <>
struct Piece<double> {
    double of[2];
    __device__ __forceinline__ static Piece at(const double* from)
    {
        double2 two = *reinterpret_cast<const double2*>(from);
        return {two.x, two.y};
    }
};

// WIDTH elements side by side, zeros beyond the matrix; at once where it has them all.
template <int WIDTH, typename T>
__device__ __forceinline__ void load(const Matrix<const T>& from, Size row, Size column, T (&values)[WIDTH])
{
    if (from.holds(row, column + WIDTH - 1)) {
        const T* at = &from(row, column);
        if constexpr (WIDTH * sizeof(T) == 16) {
            Piece<T> piece = Piece<T>::at(at);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) values[i] = piece.of[i];
        } else if constexpr (WIDTH == 2) {
            float2 two = *reinterpret_cast<const float2*>(at);
            values[0] = two.x;
            values[1] = two.y;
        } else {
            values[0] = *at;
        }
    } else {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) values[i] = from.holds(row, column + i) ? from(row, column + i) : T(0);
    }
}

// Adds COUNT elements side by side of C to `values`, WIDTH at a time where they can be loaded so.
template <int WIDTH, int COUNT, typename T>
__device__ __forceinline__ void add(const Matrix<T>& c, Size row, Size column, T (&values)[COUNT])
{
    const Matrix<const T> from = {c.data, c.rows, c.columns, c.stride};
#pragma unroll
    for (int i = 0; i < COUNT; i += WIDTH) {
        T there[WIDTH];
        load<WIDTH>(from, row, column + i, there);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) values[i + j] += there[j];
    }
}

// COUNT elements side by side into C, as far as C goes, WIDTH at a time where they can be.
template <int WIDTH, int COUNT, typename T>
__device__ __forceinline__ void store(const Matrix<T>& c, Size row, Size column, const T (&values)[COUNT])
{
    if (row >= c.rows) return;
    T* to = &c(row, column);
#pragma unroll
    for (int i = 0; i < COUNT; i += WIDTH) {
        if (column + i + WIDTH <= c.columns) {
            if constexpr (WIDTH == 4)
                *reinterpret_cast<float4*>(to + i) = make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
            else if constexpr (WIDTH == 2 && sizeof(T) == 8)
                *reinterpret_cast<double2*>(to + i) = make_double2(values[i], values[i + 1]);
            else if constexpr (WIDTH == 2)
                *reinterpret_cast<float2*>(to + i) = make_float2(values[i], values[i + 1]);
            else
                to[i] = values[i];
        } else {
#pragma unroll
            for (int j = i; j < i + WIDTH; ++j)
                if (column + j < c.columns) to[j] = values[j];
        }
    }
}

// The same for a row of a thread's elements of C: pieces of 16 bytes, `apart` columns from one to the next.
template <int WIDTH, int COUNT, typename T>
__device__ __forceinline__ void add_pieces(const Matrix<T>& c, Size row, Size column, int apart, T (&values)[COUNT])
{
    constexpr int PIECE = 16 / sizeof(T);
#pragma unroll
    for (int j = 0; j < COUNT; j += PIECE) {
        T piece[PIECE];
#pragma unroll
        for (int i = 0; i < PIECE; ++i) piece[i] = values[j + i];
        add<WIDTH>(c, row, column + j / PIECE * apart, piece);
#pragma unroll
        for (int i = 0; i < PIECE; ++i) values[j + i] = piece[i];
    }
}

template <int WIDTH, int COUNT, typename T>
__device__ __forceinline__ void store_pieces(const Matrix<T>& c, Size row, Size column, int apart, const T (&values)[COUNT])
{
    constexpr int PIECE = 16 / sizeof(T);
#pragma unroll
    for (int j = 0; j < COUNT; j += PIECE) {
        T piece[PIECE];
#pragma unroll
        for (int i = 0; i < PIECE; ++i) piece[i] = values[j + i];
        store<WIDTH>(c, row, column + j / PIECE * apart, piece);
    }
}
