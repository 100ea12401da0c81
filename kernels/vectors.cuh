// SPDX-License-Identifier: MIT
// Vector loads and stores: up to 16 bytes of a row by one instruction.
#pragma once
#include "matrix.cuh"

// 16 bytes of neighbouring elements, loaded by one instruction.
template <typename T>
struct Vector;

template <>
struct Vector<float> {
    float element[4];
    __device__ __forceinline__ static Vector load(const float* from)
    {
        float4 four = *reinterpret_cast<const float4*>(from);
        return {four.x, four.y, four.z, four.w};
    }
};

template <>
struct Vector<double> {
    double element[2];
    __device__ __forceinline__ static Vector load(const double* from)
    {
        double2 two = *reinterpret_cast<const double2*>(from);
        return {two.x, two.y};
    }
};

// Loads WIDTH neighbouring elements, as a vector if all are within the matrix; those beyond it are 0.
template <int WIDTH, typename T>
__device__ __forceinline__ void load(const Matrix<const T>& from, Size row, Size column, T (&values)[WIDTH])
{
    if (from.holds(row, column + WIDTH - 1)) {
        const T* at = &from(row, column);
        if constexpr (WIDTH * sizeof(T) == 16) {
            Vector<T> vector = Vector<T>::load(at);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) values[i] = vector.element[i];
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

// Adds COUNT neighbouring elements of C to `values`; loads WIDTH of them at a time.
template <int WIDTH, int COUNT, typename T>
__device__ __forceinline__ void add(const Matrix<T>& c, Size row, Size column, T (&values)[COUNT])
{
    const Matrix<const T> from = {c.data, c.rows, c.columns, c.stride};
#pragma unroll
    for (int i = 0; i < COUNT; i += WIDTH) {
        T loaded[WIDTH];
        load<WIDTH>(from, row, column + i, loaded);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) values[i + j] += loaded[j];
    }
}

// Stores COUNT neighbouring elements, without those beyond C; as vectors of WIDTH where all of one are within C.
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

// The same for a row of a thread's register tile: 16-byte vectors, `step` columns from one to the next.
template <int WIDTH, int COUNT, typename T>
__device__ __forceinline__ void add_vectors(const Matrix<T>& c, Size row, Size column, int step, T (&values)[COUNT])
{
    constexpr int VECTOR = 16 / sizeof(T);
#pragma unroll
    for (int j = 0; j < COUNT; j += VECTOR) {
        T vector[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) vector[i] = values[j + i];
        add<WIDTH>(c, row, column + j / VECTOR * step, vector);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) values[j + i] = vector[i];
    }
}

template <int WIDTH, int COUNT, typename T>
__device__ __forceinline__ void store_vectors(const Matrix<T>& c, Size row, Size column, int step, const T (&values)[COUNT])
{
    constexpr int VECTOR = 16 / sizeof(T);
#pragma unroll
    for (int j = 0; j < COUNT; j += VECTOR) {
        T vector[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) vector[i] = values[j + i];
        store<WIDTH>(c, row, column + j / VECTOR * step, vector);
    }
}
