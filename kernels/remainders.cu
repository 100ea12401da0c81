// SPDX-License-Identifier: MIT
// From a matrix of floating-point numbers to the remainders of integers: each number is multiplied by its line's power of two,
// rounded to an integer, and reduced by N moduli at once. N planes of packed bytes come out.
//
// One modulus alone, 256, leaves the lowest byte of each integer: integers from -128 to 127 as signed bytes.
//
// Memory bandwidth is the limit: 8 + N bytes for each element of float64, 4 + N for one of float32.
#include "packed.cuh"

// Four integers modulo all of N moduli: four bytes into each plane.
template <int I, int N, typename Digits>
__device__ __forceinline__ void store_remainders(const Digits (&x)[4], unsigned char* to, Size plane)
{
    constexpr int P = modulus(I);
    *reinterpret_cast<unsigned*>(to) =
        pack_bytes(remainder_of<P>(x[0]), remainder_of<P>(x[1]), remainder_of<P>(x[2]), remainder_of<P>(x[3]));
    if constexpr (I + 1 < N) store_remainders<I + 1, N>(x, to + plane, plane);
}

template <typename T, int N>
struct Remainders {
    Matrix<const double> scales;    // one for each line
    Matrix<unsigned char> packed;  // a row for each plane, from the matrix's first line on

    __device__ __forceinline__ Size place(Size unit) const { return unit; }
    __device__ __forceinline__ Size line(Size column) const { return N > 1 ? interleaved(column) : column; }
    __device__ __forceinline__ void store(const T (&four)[4], Size line, Size offset) const
    {
        double scale = scales.data[line];
        auto digits = [&](int i) { return digits_of(four[i], scale); };
        const decltype(digits(0)) x[4] = {digits(0), digits(1), digits(2), digits(3)};
        store_remainders<0, N>(x, packed.data + offset, packed.stride);
    }
};

template <typename T, int N>
__global__ void __launch_bounds__(PACKING_THREADS)
    remainders_of_rows(Matrix<const T> a, Matrix<const double> scales, Matrix<unsigned char> packed)
{
    pack_rows(a, Remainders<T, N>{scales, packed}, units(a.columns));
}

template <typename T, int N>
__global__ void __launch_bounds__(PACKING_THREADS)
    remainders_of_columns(Matrix<const T> b, Matrix<const double> scales, Matrix<unsigned char> packed)
{
    pack_columns(b, Remainders<T, N>{scales, packed}, units(b.rows));
}
