// SPDX-License-Identifier: MIT
// Measures each line (a row of A, a column of B) before it is scaled and rounded to integers: its Euclidean norm and largest
// magnitude, which determine its power of two, and whether all elements are integers.
//
// The order of each sum depends only on the matrix, without atomic additions, so that a line gets the same power of two on every
// device. Memory bandwidth is the limit: each element is read once.
#include "hardware.cuh"
#include "matrix.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32, CHUNK = 512;  // CHUNK: rows of B that a block adds up

struct Measure {
    static constexpr int NUMBERS = 4;
    double squares = 0, sum = 0, most = 0, fraction = 0;  // fraction: 1 if an element is no integer

    __device__ __forceinline__ void take(double x)
    {
        squares = fma(x, x, squares);
        sum += fabs(x);
        most = fmax(most, fabs(x));
        fraction = x == rint(x) ? fraction : 1;
    }

    __device__ __forceinline__ void join(const Measure& other)
    {
        squares += other.squares;
        sum += other.sum;
        most = fmax(most, other.most);
        fraction = fmax(fraction, other.fraction);
    }

    __device__ __forceinline__ void join_warp()
    {
        for (int distance = 16; distance; distance /= 2) {
            Measure other;
            other.squares = __shfl_xor_sync(~0u, squares, distance);
            other.sum = __shfl_xor_sync(~0u, sum, distance);
            other.most = __shfl_xor_sync(~0u, most, distance);
            other.fraction = __shfl_xor_sync(~0u, fraction, distance);
            join(other);
        }
    }

    __device__ void store(const Matrix<double>& into, Size row) const
    {
        into(row, 0) = squares, into(row, 1) = sum, into(row, 2) = most, into(row, 3) = fraction;
    }

    __device__ static Measure load(const Matrix<const double>& from, Size row)
    {
        Measure measure;
        measure.squares = from(row, 0), measure.sum = from(row, 1), measure.most = from(row, 2), measure.fraction = from(row, 3);
        return measure;
    }
};

// One block, and one row of `measures`, for each row of A.
template <typename T>
__global__ void __launch_bounds__(THREADS) measure_rows(Matrix<const T> a, Matrix<double> measures)
{
    __shared__ double parts[WARPS][Measure::NUMBERS];
    Matrix<double> of_warps{&parts[0][0], WARPS, Measure::NUMBERS, Measure::NUMBERS};
    Measure mine;
    const T* row = &a(blockIdx.x, 0);
#pragma unroll 4
    for (Size k = threadIdx.x; k < a.columns; k += THREADS) mine.take(widened(row[k]));
    mine.join_warp();
    if (threadIdx.x % 32 == 0) mine.store(of_warps, threadIdx.x / 32);
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int warp = 1; warp < WARPS; ++warp)
        mine.join(Measure::load({&parts[0][0], WARPS, Measure::NUMBERS, Measure::NUMBERS}, warp));
    mine.store(measures, blockIdx.x);
}

// One block for CHUNK rows of 32 columns of B. `measures` has a row for each column, chunk by chunk.
template <typename T>
__global__ void __launch_bounds__(THREADS) measure_columns(Matrix<const T> b, Matrix<double> measures)
{
    constexpr int THREADS_OF_ALL = WARPS * 32, NUMBERS = Measure::NUMBERS;
    __shared__ double parts[THREADS_OF_ALL][NUMBERS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Size column = blockIdx.x * Size(32) + lane, first = blockIdx.y * Size(CHUNK);
    Measure mine;
    if (column < b.columns) {
#pragma unroll 8
        for (Size k = first + warp; k < min(b.rows, first + CHUNK); k += WARPS) mine.take(widened(b(k, column)));
    }
    mine.store({&parts[0][0], THREADS_OF_ALL, NUMBERS, NUMBERS}, threadIdx.x);
    __syncthreads();
    if (warp > 0 || column >= b.columns) return;
    for (int other = 1; other < WARPS; ++other)
        mine.join(Measure::load({&parts[0][0], THREADS_OF_ALL, NUMBERS, NUMBERS}, other * 32 + lane));
    mine.store(measures, blockIdx.y * b.columns + column);
}

// Whether the sum of squares has neither overflowed nor underflowed. False for NaN.
__device__ __forceinline__ bool in_range(const Measure& line)
{
    return line.squares < 1e280 && (line.most == 0 || line.squares > 1e-280);
}

// Joins the measures of a line's chunks, and writes rows 0, 1 and 4 of `lines`: norm, largest magnitude, and for the guard the
// factor that scales the mean magnitude to 8. `steps`: the inverse factor, relative to the norm. `summary`, 0 before, over all
// lines: the largest magnitude, whether some element is no integer, whether some line is out of range, and the least nonzero norm
// with its bits inverted. `inner`: the length of a line.
__global__ void __launch_bounds__(THREADS) summarize(Matrix<const double> measures, Matrix<double> lines, Matrix<float> steps,
                                                     Matrix<unsigned long long> summary, double inner)
{
    Size i = blockIdx.x * Size(THREADS) + threadIdx.x;
    if (i >= lines.columns) return;
    Measure line = Measure::load(measures, i);
    for (Size part = i + lines.columns; part < measures.rows; part += lines.columns) line.join(Measure::load(measures, part));
    double norm = sqrt(line.squares);
    lines(0, i) = norm;
    lines(1, i) = line.most;
    lines(4, i) = line.most > 0 ? 8 * inner / line.sum : 0;
    steps(0, i) = static_cast<float>(line.sum / (8 * inner * norm));  // NaN for a line of zeros, which fminf ignores
    // Nonnegative doubles are ordered as their bits.
    atomicMax(&summary(0, 0), static_cast<unsigned long long>(__double_as_longlong(line.most)));
    if (line.fraction > 0) atomicMax(&summary(0, 1), 1ull);
    if (!in_range(line)) atomicMax(&summary(0, 2), 1ull);
    if (line.most > 0) atomicMax(&summary(0, 3), ~static_cast<unsigned long long>(__double_as_longlong(norm)));
}

// Writes rows 2 and 3 of `lines`: the power of two that scales a line before it is rounded to integers, and its inverse. It is the
// largest one that keeps the line's norm below `limit`, and its integers within `bits` bits; 1 if `limit` is 0, for matrices of
// integers.
__global__ void __launch_bounds__(THREADS) scale_lines(Matrix<double> lines, double limit, int bits)
{
    Size i = blockIdx.x * Size(THREADS) + threadIdx.x;
    if (i >= lines.columns) return;
    double norm = lines(0, i), most = lines(1, i);
    int exponent = 0;
    if (limit > 0 && most > 0) {
        exponent = ilogb(limit) - ilogb(norm);
        if (ldexp(norm, exponent) >= limit) --exponent;
        exponent = min(exponent, bits - 2 - ilogb(most));
    }
    lines(2, i) = ldexp(1.0, exponent);
    lines(3, i) = ldexp(1.0, -exponent);
}

// Copies a few words to pinned host memory: at once, where a D2H copy would queue behind others in the copy engine.
__global__ void tell(Matrix<const unsigned> from, Matrix<unsigned> to)
{
    if (from.holds(0, threadIdx.x)) to(0, threadIdx.x) = from(0, threadIdx.x);
}
