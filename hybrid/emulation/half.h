// SPDX-License-Identifier: MIT
// half and half2 for compilers with _Float16, in place of cuda_fp16.h.
#pragma once
#ifdef __FLT16_MANT_DIG__

typedef _Float16 __half;  // no class, since __shared__ arrays have no constructors
typedef __half half;

struct alignas(4) __half2 {
    __half x, y;
};
typedef __half2 half2;

#define ARITHMETIC(symbol, name)                                                                   \
    static inline __half2 operator symbol(__half2 x, __half2 y)                                    \
    {                                                                                              \
        return {static_cast<__half>(x.x symbol y.x), static_cast<__half>(x.y symbol y.y)};         \
    }                                                                                              \
    static inline __half2& operator symbol## = (__half2 & x, __half2 y) { return x = x symbol y; } \
    static inline __half __h##name(__half x, __half y) { return x symbol y; }                      \
    static inline __half2 __h##name##2(__half2 x, __half2 y) { return x symbol y; }
ARITHMETIC(+, add)
ARITHMETIC(-, sub)
ARITHMETIC(*, mul)
ARITHMETIC(/, div)
#undef ARITHMETIC
#define COMPARISON(symbol, name) \
    static inline bool __h##name(__half x, __half y) { return x symbol y; }
COMPARISON(<, lt)
COMPARISON(>, gt)
COMPARISON(<=, le)
COMPARISON(>=, ge)
COMPARISON(==, eq)
COMPARISON(!=, ne)
#undef COMPARISON
#define FUNCTION(name)                                                                 \
    static inline __half h##name(__half x) { return static_cast<__half>(name##f(x)); } \
    static inline __half2 h2##name(__half2 x) { return {h##name(x.x), h##name(x.y)}; }
FUNCTION(sqrt)
FUNCTION(exp)
FUNCTION(log)
FUNCTION(sin)
FUNCTION(cos)
FUNCTION(floor)
FUNCTION(ceil)
#undef FUNCTION
static inline __half __hneg(__half x) { return -x; }
static inline __half __habs(__half x) { return static_cast<__half>(fabsf(x)); }
static inline __half __hmax(__half x, __half y) { return static_cast<__half>(fmaxf(x, y)); }
static inline __half __hmin(__half x, __half y) { return static_cast<__half>(fminf(x, y)); }
static inline __half __hfma(__half x, __half y, __half z)
{
    return static_cast<__half>(static_cast<double>(x) * static_cast<double>(y) + static_cast<double>(z));
}
static inline __half2 __hfma2(__half2 x, __half2 y, __half2 z) { return {__hfma(x.x, y.x, z.x), __hfma(x.y, y.y, z.y)}; }

static inline __half __float2half(float x) { return static_cast<__half>(x); }
static inline __half __float2half_rn(float x) { return static_cast<__half>(x); }
static inline __half __double2half(double x) { return static_cast<__half>(x); }
static inline __half __int2half_rn(int x) { return static_cast<__half>(x); }
static inline float __half2float(__half x) { return x; }
static inline int __half2int_rn(__half x) { return static_cast<int>(lrintf(x)); }
static inline __half2 make_half2(__half x, __half y) { return {x, y}; }
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
static inline __half2 __half2half2(__half x) { return {x, x}; }
static inline __half2 __float2half2_rn(float x) { return {__float2half(x), __float2half(x)}; }
static inline __half2 __floats2half2_rn(float x, float y) { return {__float2half(x), __float2half(y)}; }
static inline __half2 __float22half2_rn(float2 x) { return __floats2half2_rn(x.x, x.y); }
static inline float2 __half22float2(__half2 x) { return {x.x, x.y}; }
static inline __half __low2half(__half2 x) { return x.x; }
static inline __half __high2half(__half2 x) { return x.y; }
static inline float __low2float(__half2 x) { return x.x; }
static inline float __high2float(__half2 x) { return x.y; }

#endif
