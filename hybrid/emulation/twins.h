// SPDX-License-Identifier: MIT
// The functions of kernels/hardware.cuh for the emulation: same names, signatures and conditions. Included in an anonymous
// namespace. A twin of a warp-wide operation calls cuda_on_cpu::warp_sync with the lane's operands and a function that computes
// the results of all lanes.
#pragma once

__device__ __forceinline__ float multiply_add(float x, float y, float sum) { return std::fma(x, y, sum); }
__device__ __forceinline__ double multiply_add(double x, double y, double sum) { return std::fma(x, y, sum); }
__device__ __forceinline__ double widened(double x) { return x; }

// The value of a 16-bit floating-point number.
template <typename T>
float number_of(unsigned bits)
{
    constexpr int MANTISSA = 15 - T::EXPONENT_BITS, LARGEST = (1 << T::EXPONENT_BITS) - 1, BIAS = LARGEST / 2;
    int exponent = static_cast<int>(bits >> MANTISSA) & LARGEST, mantissa = static_cast<int>(bits & ((1u << MANTISSA) - 1));
    float size;
    if (exponent == LARGEST)
        size = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        size = std::ldexp(static_cast<float>(mantissa), 1 - BIAS - MANTISSA);
    else
        size = std::ldexp(static_cast<float>(mantissa | 1 << MANTISSA), exponent - BIAS - MANTISSA);
    return bits >> 15 ? -size : size;
}

__device__ __forceinline__ double widened(Float16 x) { return number_of<Float16>(x.bits); }
__device__ __forceinline__ double widened(Bfloat16 x) { return number_of<Bfloat16>(x.bits); }

template <typename T>
__device__ __forceinline__ T rounded(double x)
{
    return static_cast<T>(x);
}

__device__ __forceinline__ int dot_bytes(unsigned unsigned_bytes, unsigned signed_bytes, int sum)
{
    for (int i = 0; i < 32; i += 8)
        sum += static_cast<int>(unsigned_bytes >> i & 255) * static_cast<signed char>(signed_bytes >> i & 255);
    return sum;
}

template <typename T>
__device__ __forceinline__ T* dynamic_shared_memory()
{
    return static_cast<T*>(cuda_on_cpu::dynamic_shared_memory());
}

// Matrix units: d (ROWS×8) += a (ROWS×DEPTH) · b (DEPTH×8) by a warp. A word holds PER elements along k. Lane (g, t) = (lane / 4,
// lane % 4) holds the words (g, t) of `a`, then (g+8, t) if there are 16 rows, then those four words to the right, and so on; the
// words (t, g), (t+4, g), ... of `b`; and (g, 2t), (g, 2t+1) of `d`, then the same of row g+8. Sums are in the order of k; on a GPU
// their order is unspecified.
template <typename Word, int ROWS, int WORDS>
struct MmaOperands {  // of a lane; WORDS: in a row of `a`
    Word a[ROWS * WORDS / 32], b[WORDS / 4];
};

template <typename Word, int ROWS, int WORDS, int PER, typename Number, typename Sum, Number (*number)(Word, int)>
void mma(const cuda_on_cpu::Lanes& lanes)
{
    Number a[ROWS][WORDS * PER], b[8][WORDS * PER];  // contiguous along k, so that the compiler vectorizes
    for (int lane = 0; lane < 32; ++lane) {
        auto operands = static_cast<const MmaOperands<Word, ROWS, WORDS>*>(lanes.input[lane]);
        for (int word = 0; word < WORDS / 4; ++word)
            for (int i = 0; i < PER; ++i) {
                int k = (word * 4 + lane % 4) * PER + i;
                for (int half = 0; half < ROWS / 8; ++half)
                    a[lane / 4 + 8 * half][k] = number(operands->a[word * (ROWS / 8) + half], i);
                b[lane / 4][k] = number(operands->b[word], i);
            }
    }
    for (int row = 0; row < ROWS; ++row)
        for (int column = 0; column < 8; ++column) {
            Sum& d = static_cast<Sum*>(lanes.output[row % 8 * 4 + column / 2])[row / 8 * 2 + column % 2];
            Sum sum = d;
            for (int k = 0; k < WORDS * PER; ++k)
                if constexpr (std::is_integral_v<Sum>)
                    sum += a[row][k] * b[column][k];
                else
                    sum = std::fma(a[row][k], b[column][k], sum);
            d = sum;
        }
}

inline double itself(double word, int) { return word; }
template <typename Byte>
int byte_of(unsigned word, int i)
{
    return static_cast<Byte>(word >> 8 * i & 255);
}
template <typename T>
float half_of(unsigned word, int i)
{
    return number_of<T>(word >> 16 * i & 0xffff);
}

// Works on a copy of d, since another lane's fiber computes it.
template <typename Operands, typename Sum, size_t COUNT>
void multiply_by_warp(cuda_on_cpu::Combine multiply, const Operands& operands, Sum (&d)[COUNT], cuda_on_cpu::Place place)
{
    Sum sums[COUNT];
    memcpy(sums, d, sizeof(d));
    cuda_on_cpu::warp_sync(0xffffffffu, multiply, &operands, sums, false, place);
    memcpy(d, sums, sizeof(d));
}

#if __CUDA_ARCH__ >= 750
struct SixteenBytes {
    unsigned words[4];
};

// Lane (g, t) gets the words (g, t) of the four matrices whose rows the lanes have read; if TRANSPOSED, the 16-bit elements (2t, g)
// and (2t+1, g).
template <bool TRANSPOSED>
void exchange(const cuda_on_cpu::Lanes& lanes)
{
    for (int lane = 0; lane < 32; ++lane)
        for (int matrix = 0; matrix < 4; ++matrix) {
            auto word = [&](int row, int word) {
                return static_cast<const SixteenBytes*>(lanes.input[8 * matrix + row])->words[word];
            };
            unsigned& result = static_cast<unsigned*>(lanes.output[lane])[matrix];
            result = word(lane / 4, lane % 4);
            if (!TRANSPOSED) continue;
            auto element = [&](int row) { return word(row, lane / 8) >> lane / 4 % 2 * 16 & 0xffff; };
            result = element(lane % 4 * 2 + 1) << 16 | element(lane % 4 * 2);
        }
}

template <bool TRANSPOSED = false>
__device__ inline void load_matrices(unsigned (&r)[4], const void* shared, CALLED_FROM)
{
    // Each lane reads its own row; then the lanes exchange words.
    SixteenBytes row = *static_cast<const SixteenBytes*>(shared);
    multiply_by_warp(exchange<TRANSPOSED>, row, r, place);
}

template <typename Byte>
__device__ inline void mma_m8n8k16(int (&d)[2], unsigned a, unsigned b, CALLED_FROM)
{
    multiply_by_warp(mma<unsigned, 8, 4, 4, int, int, byte_of<Byte>>, MmaOperands<unsigned, 8, 4>{{a}, {b}}, d, place);
}
#endif

#if __CUDA_ARCH__ >= 800
template <int BYTES>
__attribute__((noinline)) void copy_async(void* shared, const void* global, int valid = BYTES, CALLED_FROM)
{
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
    cuda_on_cpu::copy(shared, global, BYTES, valid, place, __builtin_return_address(0));
}

using cuda_on_cpu::copies_commit;

template <int PENDING>
__device__ __forceinline__ void copies_wait()
{
    cuda_on_cpu::wait_copies(PENDING);
}

__device__ inline void mma_m8n8k4(double (&d)[2], double a, double b, CALLED_FROM)
{
    multiply_by_warp(mma<double, 8, 4, 1, double, double, itself>, MmaOperands<double, 8, 4>{{a}, {b}}, d, place);
}

__device__ inline void load_matrices_transposed(unsigned (&r)[4], const void* shared, CALLED_FROM)
{
    load_matrices<true>(r, shared, place);
}

template <typename T>
__device__ inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, CALLED_FROM)
{
    MmaOperands<unsigned, 16, 8> operands{{a[0], a[1], a[2], a[3]}, {b0, b1}};
    multiply_by_warp(mma<unsigned, 16, 8, 2, float, float, half_of<T>>, operands, d, place);
}

template <typename Byte>
__device__ inline void mma_m16n8k32(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, CALLED_FROM)
{
    MmaOperands<unsigned, 16, 8> operands{{a[0], a[1], a[2], a[3]}, {b0, b1}};
    multiply_by_warp(mma<unsigned, 16, 8, 4, int, int, byte_of<Byte>>, operands, d, place);
}
#endif

#if __CUDA_ARCH__ >= 900
__device__ inline void mma_m16n8k8(double (&d)[4], const double (&a)[4], const double (&b)[2], CALLED_FROM)
{
    MmaOperands<double, 16, 8> operands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    multiply_by_warp(mma<double, 16, 8, 1, double, double, itself>, operands, d, place);
}
#endif
