// SPDX-License-Identifier: MIT
// From a matrix of floating-point numbers to the remainders of integers: each number is multiplied by its line's power of two,
// rounded to an integer, and reduced by N moduli at once. N planes of packed bytes come out.
//
// One modulus alone, 256, leaves the lowest byte of each integer: integers from -128 to 127 as signed bytes.
//
// A complex number has three planes a modulus: of its real parts, its imaginary parts and their sums. A complex product is three
// real ones of these (3M), which are exact modulo each of the moduli.
//
// Memory bandwidth is the limit: 8 + N bytes for each element of float64, 4 + N for one of float32; of complex numbers 2·8 + 3·N.
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

// Of four complex numbers: into planes I, N + I and 2·N + I.
template <int I, int N, typename Digits>
__device__ __forceinline__ void store_remainders(const Digits (&re)[4], const Digits (&im)[4], unsigned char* to, Size plane)
{
    constexpr unsigned P = modulus(I);
    unsigned x[3][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[0][i] = remainder_of<P>(re[i]) & 255, x[1][i] = remainder_of<P>(im[i]) & 255;
        unsigned sum = x[0][i] + x[1][i];
        x[2][i] = min(sum, sum - P);
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) *reinterpret_cast<unsigned*>(to + i * N * plane) = pack_bytes(x[i][0], x[i][1], x[i][2], x[i][3]);
    if constexpr (I + 1 < N) store_remainders<I + 1, N>(re, im, to + plane, plane);
}

template <typename T, int N, int PARTS_OF_ELEMENTS, bool CONJUGATE = false>
struct Remainders {
    static constexpr int PARTS = PARTS_OF_ELEMENTS;
    Matrix<const double> scales;    // one for each line
    Size stride;                   // from one line's scale to the next one's
    Matrix<unsigned char> packed;  // a row for each plane, from the matrix's first line on

    __device__ __forceinline__ Size place(Size unit) const { return unit; }
    __device__ __forceinline__ Size line(Size column) const { return N > 1 ? interleaved(column) : column; }
    __device__ __forceinline__ void store(const T (&four)[PARTS][4], Size line, Size offset) const
    {
        double scale = scales.data[line * stride];
        auto digits = [&](int part, int i) { return digits_of(four[part][i], CONJUGATE && part ? -scale : scale); };
        using Digits = decltype(digits(0, 0));
        const Digits x[4] = {digits(0, 0), digits(0, 1), digits(0, 2), digits(0, 3)};
        if constexpr (PARTS == 1) {
            store_remainders<0, N>(x, packed.data + offset, packed.stride);
        } else {
            const Digits y[4] = {digits(1, 0), digits(1, 1), digits(1, 2), digits(1, 3)};
            store_remainders<0, N>(x, y, packed.data + offset, packed.stride);
        }
    }
};

// `PARTS`: 2 for complex numbers, of which the conjugates may be wanted. Their scale is that of the first of B's two columns.
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
