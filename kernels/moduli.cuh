// SPDX-License-Identifier: MIT
// A residue number system: the moduli, and the reduction of integers and of sums of products.
#pragma once
#include "hardware.cuh"
#include "matrix.cuh"

// The largest pairwise coprime numbers whose remainders fit a byte. N of them are always the first N.
__host__ __device__ constexpr int modulus(int i)
{
    constexpr int MODULI[] = {256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193};
    return MODULI[i];
}

constexpr int MOST_MODULI = 16;

__host__ __device__ constexpr int power_modulo(int base, int exponent, int p)
{
    int power = 1;
    for (int i = 0; i < exponent; ++i) power = power * base % p;
    return power;
}

// 256^j modulo p for j = first … first + 3, as the signed bytes of a word, each the remainder nearest to 0.
__host__ __device__ constexpr unsigned weights_of_bytes(int p, int first)
{
    unsigned word = 0;
    for (int j = 3; j >= 0; --j) {
        int weight = power_modulo(256, first + j, p);
        word = word << 8 | static_cast<unsigned>(weight > p / 2 ? weight - p : weight) % 256;
    }
    return word;
}

// An integer with its highest bit flipped, which adds 2⁶³ or 2³¹, so that its bytes are unsigned digits to base 256.
struct Digits64 {
    static constexpr int OFFSET = 63;  // log₂ of the added number
    unsigned low, high;

    Digits64() = default;
    __device__ explicit Digits64(long long x) : low(static_cast<unsigned>(x)), high(static_cast<unsigned>(x >> 32) ^ 1u << 31) {}

    // The sum of digits times their weights modulo P, plus `start`: congruent to the integer, and below 2¹⁸ in magnitude.
    template <int P>
    __device__ __forceinline__ int weighted_sum(int start) const
    {
        return dot_bytes(high, weights_of_bytes(P, 4), dot_bytes(low, weights_of_bytes(P, 0), start));
    }
};

struct Digits32 {
    static constexpr int OFFSET = 31;
    unsigned low;

    Digits32() = default;
    __device__ explicit Digits32(int x) : low(static_cast<unsigned>(x) ^ 1u << 31) {}

    template <int P>
    __device__ __forceinline__ int weighted_sum(int start) const
    {
        return dot_bytes(low, weights_of_bytes(P, 0), start);
    }
};

// Rounds to the nearest integer, ties to even. (Rounding ties up would be a bias: random numbers are often multiples of 2⁻⁵³.)
__device__ __forceinline__ Digits64 digits_of(double x, double scale) { return Digits64(__double2ll_rn(x * scale)); }
__device__ __forceinline__ Digits32 digits_of(float x, double scale) { return Digits32(__double2int_rn(widened(x) * scale)); }

// The integer modulo P, from 0 to P - 1, in the result's lowest byte; the other bytes are undefined.
//
// Division without conversions: the weighted sum s starts at the bit pattern of the float 1.5·2²³, whose unit in the last place is
// 1, so the same register is the float 1.5·2²³ + s. Adding 1.5·2²³ to a float quotient rounds it to an integer in its low bits.
// Half of P - 1 is subtracted first, so that rounding to nearest rounds s / P down. The bit pattern of 1.5·2²³ is a multiple of 256
// and does not affect the lowest byte.
template <int P, typename Digits>
__device__ __forceinline__ unsigned remainder_of(Digits x)
{
    if constexpr (P == 256) return x.low;
    constexpr unsigned PATTERN = 0x4B400000;
    constexpr float VALUE = 12582912.0f, BACK = VALUE + (P - 1) / 2, INVERSE = 1.0f / P;
    constexpr int ADDED = power_modulo(2, Digits::OFFSET, P);
    unsigned sum = static_cast<unsigned>(x.template weighted_sum<P>(static_cast<int>(PATTERN) - ADDED));
    float quotient = multiply_add(__uint_as_float(sum) - BACK, INVERSE, VALUE);
    return sum - __float_as_uint(quotient) * P;
}

// Exact division of sums below 2³¹ by a modulus, by a multiplication with its inverse and a shift.
struct Divisor {
    unsigned p, inverse;

    __device__ explicit Divisor(int p) : p(p), inverse(static_cast<unsigned>(((1ull << 39) + p - 1) / p)) {}

    __device__ __forceinline__ unsigned remainder(unsigned sum) const { return sum - (__umulhi(sum, inverse) >> 7) * p; }
};

// The number of products of two remainders whose sum stays below 2³¹.
constexpr Size MOST_TERMS = 1 << 15;

__device__ __forceinline__ unsigned pack_bytes(unsigned a, unsigned b, unsigned c, unsigned d)
{
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}
