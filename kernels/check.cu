// SPDX-License-Identifier: MIT
// The check of a product, overlapped with its copies and multiplications: C·x is compared with A·(B·x) for a random x (Freivalds).
//
// `weigh_columns` weights x by the magnitudes of B's columns. `row_sums` computes B·x and C·x by groups of columns, sums of
// squares, from which rounding errors are estimated, and a checksum of each row's bits, which finds wrong copies. `column_totals`
// adds up the squares of B. `subtract_product` computes -A·(B·x). `compare_sums` adds C·x and judges the difference. `total_pieces`
// adds up the row checksums of each copied piece. So for a right product, the host reads only some hundred numbers. All sums are in
// float64.
//
// Global loads per multiply-add: 1 in row_sums, which memory bandwidth limits. subtract_product reads A once, and B·x, which has
// one column per group, from the L2 cache.
#include "subtract_product.cuh"

template <typename T>
__device__ Word word_of(const T& element)
{
    if constexpr (sizeof(T) == sizeof(Word))
        return reinterpret_cast<const Word&>(element);
    else if constexpr (sizeof(T) == sizeof(unsigned))
        return reinterpret_cast<const unsigned&>(element);
    else
        return element.bits;
}

template <int LANES, typename Number>
__device__ Number sum_over_lanes(Number value)
{
    for (int distance = LANES / 2; distance; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

constexpr int AT_ONCE = 8;  // elements that a lane loads before it adds them up
constexpr int SPAN = 1024;  // columns per warp
constexpr int WEIGHTED_ROWS = 32;

// One warp for SPAN columns of a row; the grid's z continues y, which has too few blocks for very long rows. For each group of
// GROUP columns: the sum of the terms x[j]·m[i,j], and of their squares. With GROUP = 0: only adds the sum of m[i,j]² over all
// columns to squares[i,0]. For each row: the largest magnitude and the checksum, which must be 0 before.
//
// The checksum is the sum of all elements' bits modulo 2⁶⁴. Floats in odd columns are shifted by 32 bits, and 16-bit elements by 0,
// 16, 32 or 48, so that all types are added as 64-bit words. In one row of 32, each element is multiplied by a weight, an odd
// number with the same shift, to find exchanged columns as well. A 64-byte line is summed if bit (line + row + sample[1]) % 32 of
// sample[0] is 1.
//
// A GPU reads floats faster than it can do a dozen operations with each. So bits are shifted once per sum of a lane, and magnitudes
// are compared only until one is no integer.
template <typename T, int GROUP>
__global__ void row_sums(Matrix<const T> m, Matrix<const double> x, Matrix<const Word> weights, Matrix<double> sums,
                         Matrix<double> squares, Matrix<Word> largest, Matrix<Word> checksums, Matrix<const Word> sample)
{
    // 8 lanes add up a group of 64 columns: their loads use whole sectors, and they need fewer shuffles than 32.
    constexpr int LANES = GROUP == 64 ? 8 : 32, COLUMNS = 32 * AT_ONCE;
    Size row = blockIdx.x * Size(blockDim.y) + threadIdx.y, begin = (blockIdx.z * Size(gridDim.y) + blockIdx.y) * SPAN;
    int lane = threadIdx.x, offset = lane / LANES * (LANES * AT_ONCE) + lane % LANES;
    if (row >= m.rows) return;  // the whole warp
    const T* line = &m(row, 0);
    const double* factors = x.data;
    const Word* weights_of_columns = weights.data;
    // The position of a weight's lowest set bit, the same in all columns of this lane.
    int shift = (__ffsll(weights_of_columns[0]) - 1 + 8 * int(sizeof(T)) * lane) % 64;
    double peak = 0, sum = 0, square = 0;
    Word checksum = 0;
    unsigned lines = unsigned(sample(0, 0)), first_line = unsigned(sample(0, 1) + row) + offset * unsigned(sizeof(T)) / 64;
    for (Size from = begin; from < min(begin + SPAN, m.columns); from += COLUMNS) {
        T elements[AT_ONCE];
        double factor[AT_ONCE];
        int left = int(min(m.columns - from, Size(COLUMNS)));
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {  // all loads before any sum
            int column = offset + LANES * i;
            bool inside = column < left;
            elements[i] = inside ? line[from + column] : T{};
            factor[i] = GROUP && inside ? factors[from + column] : 1.0;
        }
        Word bits = 0;
        unsigned place = (first_line + unsigned(from * sizeof(T) / 64)) % 32;
        unsigned summed = lines >> place | lines << (32 - place) % 32;  // bit i: line i after this lane's first
        if (row % WEIGHTED_ROWS == 0) {
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                int column = offset + LANES * i, line = LANES * i * int(sizeof(T)) / 64;
                bits += column < left && summed >> line & 1 ? weights_of_columns[from + column] * word_of(elements[i]) : 0;
            }
            checksum += bits;
        } else {
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) bits += summed >> (LANES * i * int(sizeof(T)) / 64) & 1 ? word_of(elements[i]) : 0;
            checksum += bits << shift;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            double value = widened(elements[i]), term = GROUP ? value * factor[i] : value;
            sum += term;
            square = fma(term, term, square);
        }
        take_magnitude(peak, widened(elements[0]));
        if (peak < NOT_INTEGRAL) {
#pragma unroll
            for (int i = 1; i < AT_ONCE; ++i) take_magnitude(peak, widened(elements[i]));
        }
        if constexpr (GROUP > 0) {
            Size group = (from + offset) / GROUP, end = (group + 1) * GROUP;
            if (GROUP <= COLUMNS || from + COLUMNS == end || from + COLUMNS >= m.columns) {
                sum = sum_over_lanes<LANES>(sum);
                square = sum_over_lanes<LANES>(square);
                if (lane % LANES == 0 && group * GROUP < m.columns) {
                    sums(row, group) = sum;
                    squares(row, group) = square;
                }
                sum = square = 0;
            }
        }
    }
    checksum = sum_over_lanes<32>(checksum);
    for (int distance = 16; distance; distance /= 2) peak = max(peak, __shfl_xor_sync(0xffffffffu, peak, distance));
    if (!GROUP) square = sum_over_lanes<32>(square);
    if (lane == 0) {
        if (!GROUP) atomicAdd(&squares(row, 0), square);
        atomicMax(&largest(row, 0), reinterpret_cast<Word&>(peak));  // nonnegative doubles are ordered as their bits
        atomicAdd(&checksums(row, 0), checksum);
    }
}

// Indices of `numbers`: constants of the product's arithmetic.
enum { VARIANCE, PER_TERM, FLUSHED, LARGEST_SQUARE, LARGEST_INTEGER };

// A thread block per group of columns, a thread per column. weighted = x · 2^w scales all columns of a group to about the magnitude
// of the largest, estimated from the rows of m, so that rounding errors of large columns do not hide errors of small ones. Powers
// of two add no rounding. A group with only integers up to numbers[LARGEST_INTEGER] is not weighted: its sums may be exact.
template <typename T, int GROUP>
__global__ void weigh_columns(Matrix<const T> m, Matrix<const double> x, Matrix<const double> numbers, Matrix<double> weighted)
{
    constexpr int NONE = -5000, MOST_WEIGHT = 64;  // exponents
    __shared__ int largest, others;
    Size column = blockIdx.x * Size(GROUP) + threadIdx.x;
    double peak = 0;
    bool finite = true, whole = true;
    if (threadIdx.x == 0) largest = NONE, others = 0;
    __syncthreads();
    if (column < m.columns) {
#pragma unroll 8
        for (Size row = 0; row < m.rows; ++row) {
            double value = fabs(double(widened(m(row, column))));
            finite = finite && value <= 1.7976931348623157e308;
            whole = whole && value == rint(value);
            peak = max(peak, value);
        }
    }
    int exponent = finite && peak > 0 ? ilogb(peak) : NONE;
    if (exponent != NONE) atomicMax(&largest, exponent);
    if (!(finite && whole && peak <= numbers(0, LARGEST_INTEGER))) atomicMax(&others, 1);
    __syncthreads();
    int weight = others && exponent != NONE ? min(largest - exponent, MOST_WEIGHT) : 0;
    if (column < m.columns) weighted(0, column) = scalbn(x(0, column), weight);
}

constexpr int ROWS_ADDED = 32;  // by a thread block of column_totals

// totals[0,j], 0 before, becomes the sum of m[i,j] over i. Blocks of 32 threads, each for a part of one column. Rows run along the
// grid's x, since y allows too few blocks.
__global__ void column_totals(Matrix<const double> m, Matrix<double> totals)
{
    Size column = blockIdx.y * Size(32) + threadIdx.x, first = blockIdx.x * Size(ROWS_ADDED);
    if (column >= m.columns) return;
    double total = 0;
#pragma unroll 8
    for (Size row = first; row < min(first + ROWS_ADDED, m.rows); ++row) total += m(row, column);
    atomicAdd(&totals(0, column), total);
}

constexpr int ROWS_TOGETHER = 128;

// One warp per row. `differences`, initially C·x, becomes the size of C·x + subtracted: its ratio to the largest expected standard
// deviation of rounding errors,
//   √(numbers[VARIANCE] · (squares[i,g] + row_squares[i] · column_squares[g] · numbers[PER_TERM])),
// plus the error from subnormal numbers flushed to zero. `found`, by row: the sum of sizes, each capped at 4; the number of nonzero
// ones; the largest; its group; and the number of groups that cannot be judged, because A·B may overflow, or holds NaN or
// infinities. `summary`, 0 before, for each ROWS_TOGETHER rows: the same without the group.
__global__ void compare_sums(Matrix<double> differences, Matrix<const double> subtracted, Matrix<const double> squares,
                             Matrix<const double> row_squares, Matrix<const double> column_squares, Matrix<const double> numbers,
                             Matrix<double> found, Matrix<double> summary)
{
    Size row = blockIdx.x * Size(blockDim.y) + threadIdx.y;
    int lane = threadIdx.x;
    if (row >= differences.rows) return;  // the whole warp
    double sum = 0, count = 0, worst = 0, where = 0, open = 0, flushed = numbers(0, FLUSHED);
#pragma unroll 4  // overlaps loads
    for (Size group = lane; group < differences.columns; group += 32) {
        double norms = row_squares(row, 0) * column_squares(0, group),
               size = fabs(differences(row, group) + subtracted(row, group));
        if (!(norms < numbers(0, LARGEST_SQUARE))) {
            open += 1;
            size = 0;
        } else if (size > 0 || size != size) {
            // Norms bound the squares of a right product; larger ones of a wrong product must not raise its tolerance, nor
            // overflow.
            double variance = numbers(0, VARIANCE) * (fmin(squares(row, group), norms) + norms * numbers(0, PER_TERM));
            double lost = flushed * (1 + sqrt(row_squares(row, 0)) + sqrt(column_squares(0, group)));
            size /= sqrt(variance) + lost;
            if (!(size <= NOT_INTEGRAL)) size = NOT_INTEGRAL;  // NaN or infinity in C, where a right product has neither
            sum += min(size, 4.0);
            count += 1;
        }
        if (size > worst) {
            worst = size;
            where = double(group);
        }
        differences(row, group) = size;
    }
    sum = sum_over_lanes<32>(sum);
    count = sum_over_lanes<32>(count);
    open = sum_over_lanes<32>(open);
    for (int distance = 16; distance; distance /= 2) {
        double other = __shfl_xor_sync(0xffffffffu, worst, distance), there = __shfl_xor_sync(0xffffffffu, where, distance);
        if (other > worst) worst = other, where = there;
    }
    if (lane == 0) {
        double results[] = {sum, count, worst, where, open};
        for (int i = 0; i < 5; ++i) found(row, i) = results[i];
        double* together = &summary(row / ROWS_TOGETHER, 0);
        atomicAdd(&together[0], sum);
        atomicAdd(&together[1], count);
        atomicMax(reinterpret_cast<Word*>(&together[2]), reinterpret_cast<Word&>(worst));
        atomicAdd(&together[3], open);
    }
}

// The finalizer of SplitMix64.
__device__ inline Word mixed(Word bits)
{
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    return bits ^ (bits >> 31);
}

// The grid's x counts pieces, y the blocks that divide a piece's rows. pieces[i]: the index of its first row's checksum, the number
// of its rows, and the first row's number in the whole matrix. totals[i], 0 before: the sum of the row checksums, each mixed with
// the row's number, and the largest magnitude.
__global__ void total_pieces(Matrix<const Word> checksums, Matrix<const Word> largest, Matrix<const Word> pieces,
                             Matrix<Word> totals)
{
    constexpr Word STEP = 0x9E3779B97F4A7C15;  // of SplitMix64
    const Word* piece = &pieces(blockIdx.x, 0);
    Word sum = 0, peak = 0;
    for (Word i = blockIdx.y * blockDim.x + threadIdx.x; i < piece[1]; i += gridDim.y * blockDim.x) {
        Size row = piece[0] + i;
        sum += mixed(checksums(row, 0) + (piece[2] + i) * STEP);
        peak = max(peak, largest(row, 0));
    }
    sum = sum_over_lanes<32>(sum);
    for (int distance = 16; distance; distance /= 2) peak = max(peak, __shfl_xor_sync(0xffffffffu, peak, distance));
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&totals(blockIdx.x, 0), sum);
        atomicMax(&totals(blockIdx.x, 1), peak);
    }
}
