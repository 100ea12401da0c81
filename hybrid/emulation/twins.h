// SPDX-License-Identifier: MIT
// The functions of kernels/hardware.cuh for the emulation: same names, signatures and conditions. Included inside an anonymous
// namespace.
//
// A new wrapper there needs a twin here. One that a warp's lanes execute together calls cuda_on_cpu::warp_sync with its
// operands and a function that computes the results of all lanes.
#pragma once

__device__ __forceinline__ float multiply_add(float x, float y, float sum) { return std::fma(x, y, sum); }
__device__ __forceinline__ double multiply_add(double x, double y, double sum) { return std::fma(x, y, sum); }
__device__ __forceinline__ double widened(double x) { return x; }

// The number that 16 bits stand for.
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

#if __CUDA_ARCH__ >= 750
struct SixteenBytes {
    unsigned words[4];
};

inline void exchange_rows(const cuda_on_cpu::Lanes& lanes)
{
    for (int lane = 0; lane < 32; ++lane)
        for (int matrix = 0; matrix < 4; ++matrix) {
            auto row = static_cast<const SixteenBytes*>(lanes.input[8 * matrix + lane / 4]);
            static_cast<unsigned*>(lanes.output[lane])[matrix] = row->words[lane % 4];
        }
}

__device__ inline void load_matrices(unsigned (&r)[4], const void* shared, CALLED_FROM)
{
    // Each lane reads its own row, as far as sanitizers and counters see it; then the lanes exchange what they read.
    SixteenBytes row = *static_cast<const SixteenBytes*>(shared);
    unsigned words[4];
    cuda_on_cpu::warp_sync(0xffffffffu, exchange_rows, &row, words, false, file, line);
    for (int i = 0; i < 4; ++i) r[i] = words[i];
}

// The dot product of 16 bytes, four in each lane's word, of a row of A and a column of B.
template <typename Byte>
void mma_of_few_bytes(const cuda_on_cpu::Lanes& lanes)
{
    auto word = [&](int lane, int operand) { return static_cast<const unsigned*>(lanes.input[lane])[operand]; };
    for (int row = 0; row < 8; ++row)
        for (int column = 0; column < 8; ++column) {
            int& sum = static_cast<int*>(lanes.output[row * 4 + column / 2])[column % 2];
            for (int k = 0; k < 16; ++k) {
                unsigned a = word(row * 4 + k / 4, 0) >> k % 4 * 8 & 255, b = word(column * 4 + k / 4, 1) >> k % 4 * 8 & 255;
                sum += static_cast<Byte>(a) * static_cast<Byte>(b);
            }
        }
}

template <typename Byte>
__device__ inline void mma_m8n8k16(int (&d)[2], unsigned a, unsigned b, CALLED_FROM)
{
    unsigned operands[2] = {a, b};
    int sums[2] = {d[0], d[1]};
    cuda_on_cpu::warp_sync(0xffffffffu, mma_of_few_bytes<Byte>, operands, sums, false, file, line);
    d[0] = sums[0], d[1] = sums[1];
}
#endif

#if __CUDA_ARCH__ >= 800
template <int BYTES>
__attribute__((noinline)) void copy_async(void* shared, const void* global, int valid, CALLED_FROM)
{
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
    cuda_on_cpu::copy(shared, global, BYTES, valid, file, line, __builtin_return_address(0));
}

template <int BYTES>
__attribute__((noinline)) void copy_async(void* shared, const void* global, CALLED_FROM)
{
    cuda_on_cpu::copy(shared, global, BYTES, BYTES, file, line, __builtin_return_address(0));
}

__device__ __forceinline__ void copies_commit() { cuda_on_cpu::commit_copies(); }

template <int PENDING>
__device__ __forceinline__ void copies_wait()
{
    cuda_on_cpu::wait_copies(PENDING);
}

template <int ROWS, int DEPTH>
struct MmaOperands {  // a lane's fragments; lane (g, t) = (lane / 4, lane % 4)
    double a[ROWS / 8 * DEPTH / 4], b[DEPTH / 4];
};

// d (ROWS×8) += a (ROWS×DEPTH) · b (DEPTH×8), for all lanes at once.
// A lane has of `a` the elements (g, t), then (g+8, t) if there are 16 rows, then the same four columns to the right, and so on;
// of `b` (t, g), (t+4, g), ...; of `d` (g, 2t), (g, 2t+1), then the same of row g+8.
template <int ROWS, int DEPTH>
void mma(const cuda_on_cpu::Lanes& lanes)
{
    constexpr int HALVES = ROWS / 8;
    auto operands = [&](int lane) { return static_cast<const MmaOperands<ROWS, DEPTH>*>(lanes.input[lane]); };
    for (int row = 0; row < ROWS; ++row)
        for (int column = 0; column < 8; ++column) {
            double& sum = static_cast<double*>(lanes.output[row % 8 * 4 + column / 2])[row / 8 * 2 + column % 2];
            for (int k = 0; k < DEPTH; ++k) {
                double a = operands(row % 8 * 4 + k % 4)->a[k / 4 * HALVES + row / 8], b = operands(column * 4 + k % 4)->b[k / 4];
                sum = std::fma(a, b, sum);
            }
        }
}

__device__ inline void mma_m8n8k4(double (&d)[2], double a, double b, CALLED_FROM)
{
    MmaOperands<8, 4> operands{{a}, {b}};
    double sums[2] = {d[0], d[1]};  // a copy of d: other lanes' code must not access this fiber's registers
    cuda_on_cpu::warp_sync(0xffffffffu, mma<8, 4>, &operands, sums, false, file, line);
    d[0] = sums[0], d[1] = sums[1];
}

inline void exchange_columns(const cuda_on_cpu::Lanes& lanes)
{
    for (int lane = 0; lane < 32; ++lane)
        for (int matrix = 0; matrix < 4; ++matrix) {
            const void* const* rows = lanes.input + 8 * matrix + lane % 4 * 2;
            unsigned low = static_cast<const SixteenBytes*>(rows[0])->words[lane / 8] >> lane / 4 % 2 * 16 & 0xffff;
            unsigned high = static_cast<const SixteenBytes*>(rows[1])->words[lane / 8] >> lane / 4 % 2 * 16 & 0xffff;
            static_cast<unsigned*>(lanes.output[lane])[matrix] = high << 16 | low;
        }
}

__device__ inline void load_matrices_transposed(unsigned (&r)[4], const void* shared, CALLED_FROM)
{
    SixteenBytes row = *static_cast<const SixteenBytes*>(shared);  // as in load_matrices
    unsigned words[4];
    cuda_on_cpu::warp_sync(0xffffffffu, exchange_columns, &row, words, false, file, line);
    for (int i = 0; i < 4; ++i) r[i] = words[i];
}

struct MmaWords {  // a lane's fragments of elements of 16 bits
    unsigned a[4], b[2];
};

// The matrix units do not say in which order they add; here it is that of k.
template <typename T>
void mma_of_halves(const cuda_on_cpu::Lanes& lanes)
{
    auto operands = [&](int lane) { return static_cast<const MmaWords*>(lanes.input[lane]); };
    float a[16][16], b[8][16];
    for (int k = 0; k < 16; ++k) {
        int lane = k % 8 / 2, shift = k % 2 * 16;
        for (int row = 0; row < 16; ++row)
            a[row][k] = number_of<T>(operands(row % 8 * 4 + lane)->a[k / 8 * 2 + row / 8] >> shift & 0xffff);
        for (int column = 0; column < 8; ++column)
            b[column][k] = number_of<T>(operands(column * 4 + lane)->b[k / 8] >> shift & 0xffff);
    }
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < 8; ++column) {
            float& sum = static_cast<float*>(lanes.output[row % 8 * 4 + column / 2])[row / 8 * 2 + column % 2];
            for (int k = 0; k < 16; ++k) sum = std::fma(a[row][k], b[column][k], sum);
        }
}

template <typename T>
__device__ inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, CALLED_FROM)
{
    MmaWords operands{{a[0], a[1], a[2], a[3]}, {b0, b1}};
    float sums[4] = {d[0], d[1], d[2], d[3]};
    cuda_on_cpu::warp_sync(0xffffffffu, mma_of_halves<T>, &operands, sums, false, file, line);
    for (int i = 0; i < 4; ++i) d[i] = sums[i];
}

struct MmaBytes {  // a lane's fragments of bytes
    unsigned a[4], b[2];
};

template <typename Byte>
void mma_of_bytes(const cuda_on_cpu::Lanes& lanes)
{
    int a[16][32], b[8][32];  // rows of A and columns of B, one after the other: the compiler multiplies several bytes at once
    for (int lane = 0; lane < 32; ++lane) {
        auto operands = static_cast<const MmaBytes*>(lanes.input[lane]);
        for (int half = 0; half < 2; ++half)
            for (int i = 0; i < 4; ++i) {
                int k = half * 16 + lane % 4 * 4 + i;
                a[lane / 4][k] = static_cast<Byte>(operands->a[half * 2] >> 8 * i & 255);
                a[lane / 4 + 8][k] = static_cast<Byte>(operands->a[half * 2 + 1] >> 8 * i & 255);
                b[lane / 4][k] = static_cast<Byte>(operands->b[half] >> 8 * i & 255);
            }
    }
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < 8; ++column) {
            int& sum = static_cast<int*>(lanes.output[row % 8 * 4 + column / 2])[row / 8 * 2 + column % 2];
            int products = 0;
            for (int k = 0; k < 32; ++k) products += a[row][k] * b[column][k];
            sum += products;
        }
}

template <typename Byte>
__device__ inline void mma_m16n8k32(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, CALLED_FROM)
{
    MmaBytes operands{{a[0], a[1], a[2], a[3]}, {b0, b1}};
    int sums[4] = {d[0], d[1], d[2], d[3]};
    cuda_on_cpu::warp_sync(0xffffffffu, mma_of_bytes<Byte>, &operands, sums, false, file, line);
    for (int i = 0; i < 4; ++i) d[i] = sums[i];
}
#endif

#if __CUDA_ARCH__ >= 900
__device__ inline void mma_m16n8k8(double (&d)[4], const double (&a)[4], const double (&b)[2], CALLED_FROM)
{
    MmaOperands<16, 8> operands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    double sums[4] = {d[0], d[1], d[2], d[3]};
    cuda_on_cpu::warp_sync(0xffffffffu, mma<16, 8>, &operands, sums, false, file, line);
    for (int i = 0; i < 4; ++i) d[i] = sums[i];
}
#endif
