// SPDX-License-Identifier: MIT
// float32 rounded to float16 or bfloat16, to nearest even, as NumPy does without SIMD. Without branches, so that compilers
// vectorize it.
#include <stdint.h>
#include <string.h>

static uint32_t bits_of(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static float number_of(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

enum {
    INFINITE = 0x7f800000,
    BEYOND_FLOAT16 = 0x47800000,  // 2^16: infinite from here on
    NORMAL_FLOAT16 = 0x38800000,  // 2^-14: below, subnormal
    EXPONENTS = (127 - 15) << 23  // the difference of the exponents' biases
};

typedef uint16_t __attribute__((aligned(1))) Result;  // NumPy's arrays may be unaligned

// All bits where the condition is true, else none.
static uint32_t where(int condition) { return -(uint32_t)condition; }

void round_to_float16(const float* from, Result* to, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits = bits_of(from[i]), size = bits & 0x7fffffff;
        uint32_t small = where(size < NORMAL_FLOAT16), large = where(size >= BEYOND_FLOAT16);
        uint32_t normal = (size - EXPONENTS + 0xfff + (size >> 13 & 1)) >> 13;
        // The last bit of 1/2 + size is 2^-24, the least subnormal float16: the addition rounds correctly.
        uint32_t subnormal = bits_of(number_of(size & small) + 0.5f) - bits_of(0.5f);
        uint32_t infinite_or_nan = 0x7c00 | (where(size > INFINITE) & 0x200);
        uint32_t rounded = (subnormal & small) | (infinite_or_nan & large) | (normal & ~(small | large));
        to[i] = (Result)(rounded | (bits >> 16 & 0x8000));
    }
}

void round_to_bfloat16(const float* from, Result* to, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits = bits_of(from[i]), nan = where((bits & 0x7fffffff) > INFINITE);
        uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        to[i] = (Result)((rounded & ~nan) | (((bits >> 16 & 0x8000) | 0x7fc0) & nan));
    }
}
