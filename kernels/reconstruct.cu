// SPDX-License-Identifier: MIT
// From the remainders of an integer modulo N numbers to the integer (Chinese remainder theorem), and by the powers of two of its
// row and column back to an element of C.
//
// The integer is Σ rᵢ·wᵢ modulo P, the product of the moduli, where wᵢ is 1 modulo the i-th of them and 0 modulo the others.
// Each wᵢ is the sum of two doubles. Sums of the high parts are exact, and so is what is left when a multiple of P is taken off;
// those of the low parts are rounded, by about 2⁻⁷¹·P. With N of 8 at most both are exact.
//
// Memory bandwidth limits it: N bytes are read and one element is written.
#include "moduli.cuh"

using Wide = unsigned __int128;

__host__ __device__ constexpr Wide product_of_moduli(int count)
{
    Wide product = 1;
    for (int i = 0; i < count; ++i) product *= modulus(i);
    return product;
}

__host__ __device__ constexpr Wide weight(int i, int count)
{
    Wide others = product_of_moduli(count) / modulus(i);
    int p = modulus(i), rest = static_cast<int>(others % p), inverse = 1;
    while (rest * inverse % p != 1) ++inverse;
    return others * inverse;
}

__host__ __device__ constexpr double as_double(Wide x)
{
    return static_cast<double>(static_cast<unsigned long long>(x >> 64)) * 0x1p64 +
           static_cast<double>(static_cast<unsigned long long>(x));
}

// x = high + low: high has at most 36 bits, so that a sum of N products with numbers of 13 bits is exact.
struct Parts {
    double high, low;
};

template <int N>
__host__ __device__ constexpr Parts parts(Wide x)
{
    int bits = 0;
    for (Wide left = product_of_moduli(N); left; left >>= 1) ++bits;
    int low_bits = bits > 36 ? bits - 36 : 0;
    Wide high = x >> low_bits << low_bits;
    return {as_double(high), as_double(x - high)};
}

// Byte J of a word, as 1 + byte / 4096: the byte is put into a double's bits, where a conversion would be slow. So weights are
// taken 4096 times, and what the ones add is taken off at the end.
template <int J>
__device__ __forceinline__ double one_and_byte(unsigned word)
{
    return __hiloint2double(__byte_perm(word, 0x3FF00000, 0x7604 | J << 4), 0);
}

// What the ones add, in the order in which a Sum does: so remainders that all are 0 leave exactly 0.
template <int N>
__host__ __device__ constexpr Parts sum_of_ones()
{
    Parts sum{0, 0};
    for (int i = 0; i < N; ++i) {
        Parts of_one = parts<N>(weight(i, N));
        sum.high += 4096 * of_one.high;
        sum.low += 4096 * of_one.low;
    }
    return sum;
}

template <int N>
struct Sum {
    double high = 0, low = 0;

    template <int I>
    __device__ __forceinline__ void add(double one_and_remainder)
    {
        constexpr Parts WEIGHT = parts<N>(weight(I, N));
        high = fma(one_and_remainder, 4096 * WEIGHT.high, high);
        low = fma(one_and_remainder, 4096 * WEIGHT.low, low);
    }

    // Modulo P, between -P/2 and P/2.
    __device__ __forceinline__ double value() const
    {
        constexpr Parts ONES = sum_of_ones<N>(), P = parts<N>(product_of_moduli(N));
        constexpr double INVERSE = 1 / as_double(product_of_moduli(N));
        double sum = high - ONES.high, times = rint(sum * INVERSE);
        return fma(-times, P.high, sum) + fma(-times, P.low, low - ONES.low);
    }
};

template <int I, int N>
__device__ __forceinline__ void add_remainders(Sum<N> (&sums)[4], const unsigned char* from, Size plane)
{
    unsigned four = __ldcs(reinterpret_cast<const unsigned*>(from));
    sums[0].template add<I>(one_and_byte<0>(four));
    sums[1].template add<I>(one_and_byte<1>(four));
    sums[2].template add<I>(one_and_byte<2>(four));
    sums[3].template add<I>(one_and_byte<3>(four));
    if constexpr (I + 1 < N) add_remainders<I + 1, N>(sums, from + plane, plane);
}

__device__ __forceinline__ void store_four(double* to, const double (&x)[4])
{
    __stcs(reinterpret_cast<double2*>(to), make_double2(x[0], x[1]));
    __stcs(reinterpret_cast<double2*>(to) + 1, make_double2(x[2], x[3]));
}

__device__ __forceinline__ void store_four(float* to, const double (&x)[4])
{
    auto narrow = [](double y) { return rounded<float>(y); };
    __stcs(reinterpret_cast<float4*>(to), make_float4(narrow(x[0]), narrow(x[1]), narrow(x[2]), narrow(x[3])));
}

// `remainders`: one matrix below the other, each of as many rows as C; the row stride is a multiple of 4. A block takes 1024 columns of
// a row, a thread four of them. `row_scales`, `column_scales`: the inverse powers of two.
template <typename T, int N>
__global__ void __launch_bounds__(256) reconstruct(Matrix<const unsigned char> remainders, Matrix<const double> row_scales,
                                                   Matrix<const double> column_scales, Matrix<T> c)
{
    Size row = blockIdx.x, column = (blockIdx.y * Size(256) + threadIdx.x) * 4;
    if (column >= c.columns) return;
    Sum<N> sums[4];
    add_remainders<0, N>(sums, &remainders(row, column), c.rows * remainders.stride);
    double four[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
        four[j] = sums[j].value() * row_scales.data[row] * column_scales.data[min(column + j, c.columns - 1)];
    T* to = &c(row, column);
    if (column + 3 < c.columns && reinterpret_cast<size_t>(to) % 16 == 0)
        store_four(to, four);
    else
        for (int j = 0; j < 4; ++j)
            if (column + j < c.columns) to[j] = rounded<T>(four[j]);
}
