// SPDX-License-Identifier: MIT
// Reconstructs integers from their remainders modulo N numbers (Chinese remainder theorem), and scales them back to elements of C
// by the powers of two of row and column.
//
// The integer is Σ rᵢ·wᵢ modulo P, the product of the moduli, where wᵢ is 1 modulo the i-th of them and 0 modulo the others. Each
// wᵢ is the sum of two doubles. Sums of the high parts, and their reduction modulo P, are exact; sums of the low parts are rounded,
// by about 2⁻⁷¹·P. For N up to 8, both are exact.
//
// On GPUs with slow float64, `reconstruct_by_integers` sums in 32-bit words, exactly, and rounds once. Its C is bitwise the same
// for N up to 8; for larger N, a few elements differ by the rounding of the low parts.
//
// Memory bandwidth limits both: N bytes are read and one element is written.
#include "moduli.cuh"

using Wide = unsigned __int128;

__host__ __device__ constexpr Wide product_of_moduli(int count)
{
    Wide product = 1;
    for (int i = 0; i < count; ++i) product *= modulus(i);
    return product;
}

// The inverse of the product of the other moduli, modulo the i-th.
__host__ __device__ constexpr int inverse_of_others(int i, int count)
{
    int p = modulus(i), rest = static_cast<int>(product_of_moduli(count) / p % p), inverse = 1;
    while (rest * inverse % p != 1) ++inverse;
    return inverse;
}

__host__ __device__ constexpr Wide weight(int i, int count)
{
    return product_of_moduli(count) / modulus(i) * inverse_of_others(i, count);
}

__host__ __device__ constexpr double as_double(Wide x)
{
    return static_cast<double>(static_cast<unsigned long long>(x >> 64)) * 0x1p64 +
           static_cast<double>(static_cast<unsigned long long>(x));
}

// x = high + low: high has at most 36 bits, so that a sum of N products with 13-bit numbers is exact.
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

// Byte J of a word, as 1 + byte / 4096: the byte is inserted into a double's bits, since a conversion would be slow. So weights are
// multiplied by 4096, and the sum of the ones is subtracted at the end.
template <int J>
__device__ __forceinline__ double one_and_byte(unsigned word)
{
    return __hiloint2double(__byte_perm(word, 0x3FF00000, 0x7604 | J << 4), 0);
}

// The sum of the ones, in the order of Sum, so that remainders of 0 give exactly 0.
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

    template <int I>
    __device__ __forceinline__ void add(unsigned remainder)
    {
        add<I>(__hiloint2double(static_cast<int>(0x3FF00000 | remainder << 8), 0));
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

// The number of 32-bit words for x and its sign.
__host__ __device__ constexpr int words_of(Wide x)
{
    int bits = 1;
    for (; x; x >>= 1) ++bits;
    return (bits + 31) / 32;
}

// The sum of remainders times weights: in 32-bit words, each with room for carries; and as a multiple of P with 40 fractional bits,
// which tells how many times P must be subtracted.
template <int N>
struct IntegerSum {
    static constexpr int WORDS = words_of(product_of_moduli(N)), HALF = 20;
    unsigned long long word[WORDS] = {};
    unsigned high = 0, low = 0;  // parts of P in units of 2⁻²⁰ and 2⁻⁴⁰: 16 · 255 · 2²⁰ is below 2³²

    template <int I>
    __device__ __forceinline__ void add(unsigned remainder)
    {
        constexpr Wide WEIGHT = weight(I, N);
        constexpr int P = modulus(I);
        constexpr unsigned long long PART = ((static_cast<unsigned long long>(inverse_of_others(I, N)) << 2 * HALF) + P / 2) / P;
#pragma unroll
        for (int i = 0; i < WORDS; ++i)
            word[i] += static_cast<unsigned long long>(remainder) * static_cast<unsigned>(WEIGHT >> 32 * i);
        high += remainder * static_cast<unsigned>(PART >> HALF);
        low += remainder * static_cast<unsigned>(PART & ((1u << HALF) - 1));
    }

    // Modulo P, between -P/2 and P/2, rounded to the nearest double.
    __device__ __forceinline__ double value() const
    {
        constexpr Wide P = product_of_moduli(N);
        unsigned long long parts = (static_cast<unsigned long long>(high) << HALF) + low;
        unsigned times = static_cast<unsigned>((parts + (1ull << (2 * HALF - 1))) >> 2 * HALF);
        Wide sum = 0;
#pragma unroll
        for (int i = WORDS - 1; i >= 0; --i) sum = (sum << 32) + word[i];  // carries beyond the highest word vanish
        sum -= P * times;
        bool negative = static_cast<long long>(sum >> 64) < 0;
        if (negative) sum = -sum;
        unsigned long long upper = static_cast<unsigned long long>(sum >> 64), lower = static_cast<unsigned long long>(sum);
        double size;
        if (WORDS <= 2 || upper == 0) {
            size = static_cast<double>(lower);
        } else {  // the 64 highest bits, the last of them a sticky bit for those below
            int shift = 64 - __clzll(static_cast<long long>(upper));
            unsigned long long below = lower << (64 - shift), kept = static_cast<unsigned long long>(sum >> shift);
            size = static_cast<double>(kept | (below != 0)) * __hiloint2double((1023 + shift) << 20, 0);
        }
        return negative ? -size : size;
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

template <int I, int N>
__device__ __forceinline__ void add_remainders(IntegerSum<N> (&sums)[4], const unsigned char* from, Size plane)
{
    unsigned four = __ldcs(reinterpret_cast<const unsigned*>(from));
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j].template add<I>(four >> 8 * j & 255);
    if constexpr (I + 1 < N) add_remainders<I + 1, N>(sums, from + plane, plane);
}

// For four complex elements, from the remainders of re A · re B, im A · im B and (re A + im A) · (re B + im B): the first minus the
// second is the real part, the third minus both the imaginary part.
template <int I, int N, typename Sum>
__device__ __forceinline__ void add_remainders(Sum (&re)[4], Sum (&im)[4], const unsigned char* from, Size plane)
{
    constexpr unsigned P = modulus(I);
    auto minus = [](unsigned x, unsigned y) { return min(x - y, x - y + P); };
    unsigned four[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) four[i] = __ldcs(reinterpret_cast<const unsigned*>(from + i * N * plane));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        unsigned first = four[0] >> 8 * j & 255, second = four[1] >> 8 * j & 255, third = four[2] >> 8 * j & 255;
        re[j].template add<I>(minus(first, second));
        im[j].template add<I>(minus(minus(third, first), second));
    }
    if constexpr (I + 1 < N) add_remainders<I + 1, N>(re, im, from + plane, plane);
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

// `remainders`: the matrices one below the other, each with C's rows; the row stride is a multiple of 4. A block takes 1024
// elements of a row, a thread four. `row_scales`, `column_scales`: the inverse powers of two. `PARTS`: 2 for complex elements,
// which have three matrices per modulus, ordered by product, then by modulus.
template <typename Sum, int PARTS, typename T, int N>
__device__ __forceinline__ void put_together(const Matrix<const unsigned char>& remainders, const double* row_scales,
                                             const double* column_scales, const Matrix<T>& c)
{
    Size row = blockIdx.x, element = (blockIdx.y * Size(256) + threadIdx.x) * 4, column = element * PARTS;
    if (column >= c.columns) return;
    Sum sums[PARTS][4];
    const unsigned char* from = &remainders(row, element);
    Size plane = c.rows * remainders.stride;
    if constexpr (PARTS == 1)
        add_remainders<0, N>(sums[0], from, plane);
    else
        add_remainders<0, N>(sums[0], sums[1], from, plane);
    double four[PARTS][4];
#pragma unroll
    for (int j = 0; j < 4 * PARTS; ++j)  // both parts have the first column's scale
        four[j / 4][j % 4] =
            sums[j % PARTS][j / PARTS].value() * row_scales[row] * column_scales[min(column + j, c.columns - 1) / PARTS * PARTS];
    T* to = &c(row, column);
    if (column + 4 * PARTS <= c.columns && reinterpret_cast<size_t>(to) % 16 == 0) {
#pragma unroll
        for (int i = 0; i < PARTS; ++i) store_four(to + 4 * i, four[i]);
    } else
        for (int j = 0; j < 4 * PARTS; ++j)
            if (column + j < c.columns) to[j] = rounded<T>(four[j / 4][j % 4]);
}

template <typename T, int N, int PARTS = 1>
__global__ void __launch_bounds__(256) reconstruct(Matrix<const unsigned char> remainders, Matrix<const double> row_scales,
                                                   Matrix<const double> column_scales, Matrix<T> c)
{
    put_together<Sum<N>, PARTS, T, N>(remainders, row_scales.data, column_scales.data, c);
}

template <typename T, int N, int PARTS = 1>
__global__ void __launch_bounds__(256)
    reconstruct_by_integers(Matrix<const unsigned char> remainders, Matrix<const double> row_scales,
                            Matrix<const double> column_scales, Matrix<T> c)
{
    put_together<IntegerSum<N>, PARTS, T, N>(remainders, row_scales.data, column_scales.data, c);
}
