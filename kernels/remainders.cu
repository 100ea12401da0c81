// SPDX-License-Identifier: MIT
// Converts floating-point numbers to remainders: each number is multiplied by its line's power of two, rounded to an integer, and
// reduced modulo N moduli at once, into N planes of packed bytes.
//
// A single modulus, 256, gives the lowest byte of each integer: integers from -128 to 127 as signed bytes.
//
// A complex matrix has three planes per modulus: real parts, imaginary parts and their sums. A complex product is three real
// products of these (3M), which are exact modulo each modulus.
//
// Memory bandwidth is the limit: 8 + N bytes for each element of float64, 4 + N for one of float32; of complex numbers 2·8 + 3·N.
#include "packed.cuh"

// Writes four integers modulo N moduli, four bytes to each plane; for four complex numbers, to planes I, N + I and 2·N + I.
template <int I, int N, int PARTS, typename Digits>
__device__ __forceinline__ void store_remainders(const Digits (&x)[PARTS][4], unsigned char* to, Size plane)
{
    constexpr unsigned P = modulus(I);
    unsigned found[3][4];
#pragma unroll
    for (int i = 0; i < 4 * PARTS; ++i) found[i / 4][i % 4] = remainder_of<P>(x[i / 4][i % 4]);
    if constexpr (PARTS == 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            unsigned sum = (found[0][i] & 255) + (found[1][i] & 255);
            found[2][i] = min(sum, sum - P);
        }
    }
#pragma unroll
    for (int i = 0; i < 2 * PARTS - 1; ++i)
        *reinterpret_cast<unsigned*>(to + i * N * plane) = pack_bytes(found[i][0], found[i][1], found[i][2], found[i][3]);
    if constexpr (I + 1 < N) store_remainders<I + 1, N>(x, to + plane, plane);
}

template <typename T, int N, int PARTS_OF_ELEMENTS, bool CONJUGATE = false>
struct Remainders {
    static constexpr int PARTS = PARTS_OF_ELEMENTS;
    Matrix<const double> scales;    // one for each line
    Size stride;                   // of scales, from line to line
    Matrix<unsigned char> packed;  // a row for each plane, from the matrix's first line on

    __device__ __forceinline__ Size place(Size unit) const { return unit; }
    __device__ __forceinline__ Size line(Size column) const { return N > 1 ? interleaved(column) : column; }
    __device__ __forceinline__ void store(const T (&four)[PARTS][4], Size line, Size offset) const
    {
        double scale = scales.data[line * stride];
        decltype(digits_of(T(0), scale)) x[PARTS][4];
#pragma unroll
        for (int i = 0; i < 4 * PARTS; ++i) x[i / 4][i % 4] = digits_of(four[i / 4][i % 4], CONJUGATE && i > 3 ? -scale : scale);
        store_remainders<0, N>(x, packed.data + offset, packed.stride);
    }
};

// `PARTS`: 2 for complex numbers, optionally conjugated. A complex column of B has the scale of its first real column.
template <typename T, int N, int PARTS = 1, bool CONJUGATE = false>
__global__ void __launch_bounds__(PACKING_THREADS)
    remainders_of_rows(Matrix<const T> a, Matrix<const double> scales, Matrix<unsigned char> packed)
{
    pack_rows(a, Remainders<T, N, PARTS, CONJUGATE>{scales, 1, packed}, units(a.columns / PARTS));
}

template <typename T, int N, int PARTS = 1>
__global__ void __launch_bounds__(PACKING_THREADS)
    remainders_of_columns(Matrix<const T> b, Matrix<const double> scales, Matrix<unsigned char> packed)
{
    pack_columns(b, Remainders<T, N, PARTS>{scales, PARTS, packed}, units(b.rows));
}
