// SPDX-License-Identifier: MIT
// The check of a product, beside its copies and multiplications: C·x is compared with A·(B·x) for a random x (Freivalds).
//
// `row_sums` gives B·x and C·x for one group of columns after the other, with sums of squares, from which the size of rounding
// errors is estimated; and a checksum of each row's bits, which tells whether a copy arrived as it was sent. `column_totals` adds
// the squares of B up. `subtract_product` takes A·(B·x) from C·x, `compare_sums` judges what is left. Everything is in float64.
//
// Global loads per multiply-add: 1 in row_sums, which memory bandwidth limits. subtract_product reads A once and (B·x), which has
// one column for each group, from the L2 cache.
#include "hardware.cuh"
#include "matrix.cuh"

using Word = unsigned long long;

constexpr double NOT_INTEGRAL = 1e300;  // as the largest magnitude of a row that holds other numbers than integers

template <typename T>
__device__ Word word_of(const T& element)
{
    if constexpr (sizeof(T) == sizeof(Word))
        return reinterpret_cast<const Word&>(element);
    else
        return reinterpret_cast<const unsigned&>(element);
}

template <int LANES, typename Number>
__device__ Number sum_over_lanes(Number value)
{
    for (int distance = LANES / 2; distance; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

constexpr int AT_ONCE = 8;  // elements that a lane loads before it adds any of them up
constexpr int SPAN = 1024;  // columns of a row that one warp adds up
constexpr int WEIGHTED_ROWS = 32;

// One warp for SPAN columns of a row. For each group of GROUP columns the sum of x[j]·m[i,j] and of its squares; with GROUP = 0
// only the sum of m[i,j]² over all columns is added to squares[i,0]. For the row the largest magnitude, and its checksum, both 0
// before. That is the sum of all elements' bits, modulo 2⁶⁴, where a float in an odd column is shifted by 32 bits: words of 64 bits
// are added, whatever they hold. In one row of 32 each element has a weight, so that exchanged columns are found, too.
template <typename T, int GROUP>
__global__ void row_sums(Matrix<const T> m, Matrix<const double> x, Matrix<const Word> weights, Matrix<double> sums,
                         Matrix<double> squares, Matrix<Word> largest, Matrix<Word> checksums)
{
    // A group of 64 columns is added up by 8 lanes: their loads use whole sectors, and they exchange less than 32 would.
    constexpr int LANES = GROUP == 64 ? 8 : 32, COLUMNS = 32 * AT_ONCE;
    Size row = blockIdx.x * Size(blockDim.y) + threadIdx.y, begin = blockIdx.y * Size(SPAN);
    int lane = threadIdx.x, offset = lane / LANES * (LANES * AT_ONCE) + lane % LANES;
    if (row >= m.rows) return;  // the whole warp
    const T* line = &m(row, 0);
    const double* factors = x.data;
    const Word* weights_of_columns = weights.data;
    bool weighted = row % WEIGHTED_ROWS == 0;
    double peak = 0, sum = 0, square = 0;
    Word checksum = 0;
    for (Size from = begin; from < min(begin + SPAN, m.columns); from += COLUMNS) {
        T elements[AT_ONCE];
        double factor[AT_ONCE];
        Word weight[AT_ONCE];
        int left = int(min(m.columns - from, Size(COLUMNS)));
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {  // all loads before any sum
            int column = offset + LANES * i;
            bool inside = column < left;
            elements[i] = inside ? line[from + column] : T(0);
            factor[i] = GROUP && inside ? factors[from + column] : 1.0;
            weight[i] = inside ? weights_of_columns[from + column] : 0;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            checksum += (weighted ? weight[i] : weight[i] & 1 ? 1 : Word(1) << 32) * word_of(elements[i]);
            double value = elements[i], term = GROUP ? value * factor[i] : value;
            peak = value == rint(value) ? max(peak, fabs(value)) : NOT_INTEGRAL;
            sum += term;
            square = fma(term, term, square);
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
        atomicMax(&largest(row, 0), reinterpret_cast<Word&>(peak));  // in the order of the numbers, since none is negative
        atomicAdd(&checksums(row, 0), checksum);
    }
}

constexpr int ROWS_ADDED = 256;  // by a thread block of column_totals

// totals[0,j], 0 before, becomes the sum of m[i,j] over i. Blocks of 32 threads; each thread adds up a part of one column.
__global__ void column_totals(Matrix<const double> m, Matrix<double> totals)
{
    Size column = blockIdx.x * Size(32) + threadIdx.x, first = blockIdx.y * Size(ROWS_ADDED);
    if (column >= m.columns) return;
    double total = 0;
    for (Size row = first; row < min(first + ROWS_ADDED, m.rows); ++row) total += m(row, column);
    atomicAdd(&totals(0, column), total);
}

constexpr int TILE = 64, DEEP = 16;  // rows and columns that a thread block of subtract_product computes, and k at a time
constexpr int THREADS = 128;         // four warps, each with a quarter of the tile
constexpr int STRIDE = TILE + 4;     // of a row in shared memory: no bank conflicts when lanes load the fragments of an mma
constexpr int ROUND = 4;             // parts of DEEP that are added up before they join the total: far less is rounded

// A thread's 32 elements of the tile, and where they lie.
#if __CUDA_ARCH__ >= 800
// In fragments of 16×8, as `multiply_fragments` has them; the warps are two by two.
struct Sums {
    double fragments[2][4][4] = {};

    __device__ static int row(int i, int e) { return threadIdx.x / 64 * 32 + i * 16 + e / 2 * 8 + threadIdx.x % 32 / 4; }
    __device__ static int column(int j, int e) { return threadIdx.x / 32 % 2 * 32 + j * 8 + threadIdx.x % 4 * 2 + e % 2; }

    __device__ void add(const double (&a)[DEEP][STRIDE], const double (&y)[DEEP][STRIDE])
    {
        int inner = threadIdx.x % 4, line = threadIdx.x % 32 / 4, top = threadIdx.x / 64 * 32, left = threadIdx.x / 32 % 2 * 32;
#pragma unroll
        for (int k = inner; k < DEEP; k += 8) {
            double of_a[2][4], of_y[4][2];
            for (int i = 0; i < 2; ++i)
                for (int e = 0; e < 4; ++e) of_a[i][e] = a[k + e / 2 * 4][top + i * 16 + e % 2 * 8 + line];
            for (int j = 0; j < 4; ++j)
                for (int e = 0; e < 2; ++e) of_y[j][e] = y[k + e * 4][left + j * 8 + line];
            for (int i = 0; i < 2; ++i)
                for (int j = 0; j < 4; ++j) multiply_fragments(fragments[i][j], of_a[i], of_y[j]);
        }
    }
};
#else
struct Sums {
    double fragments[2][4][4] = {};

    __device__ static int row(int i, int e) { return (i * 2 + e / 2) * 16 + threadIdx.x / 8; }
    __device__ static int column(int j, int e) { return j * 16 + threadIdx.x % 8 * 2 + e % 2; }

    __device__ void add(const double (&a)[DEEP][STRIDE], const double (&y)[DEEP][STRIDE])
    {
#pragma unroll 4
        for (int k = 0; k < DEEP; ++k)
            for (int i = 0; i < 2; ++i)
                for (int j = 0; j < 4; ++j)
                    for (int e = 0; e < 4; ++e) fragments[i][j][e] = fma(a[k][row(i, e)], y[k][column(j, e)], fragments[i][j][e]);
    }
};
#endif

// difference -= a · y; each layer of the grid adds up a part of k. The next part of both operands is loaded into registers while the current one is multiplied.
template <typename T>
__global__ void __launch_bounds__(THREADS) subtract_product(Matrix<const T> a, Matrix<const double> y, Matrix<double> difference)
{
    constexpr int LOADS = TILE * DEEP / THREADS;
    __shared__ double a_part[DEEP][STRIDE], y_part[DEEP][STRIDE];
    int thread = threadIdx.x;
    Size top = blockIdx.x * Size(TILE), left = blockIdx.y * Size(TILE);
    Size parts = ceil_div(ceil_div(a.columns, Size(DEEP)), gridDim.z), begin = blockIdx.z * parts * DEEP;
    Size end = min(begin + parts * DEEP, a.columns);
    T next_a[LOADS];
    double next_y[LOADS];
    Sums sums, totals;

    auto close_round = [&] {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            totals.fragments[i / 16][i / 4 % 4][i % 4] += sums.fragments[i / 16][i / 4 % 4][i % 4];
            sums.fragments[i / 16][i / 4 % 4][i % 4] = 0;
        }
    };
    auto load = [&](Size inner) {
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            Size row = top + thread / DEEP + i * (THREADS / DEEP), k = inner + thread % DEEP;
            next_a[i] = a.holds(row, k) ? a(row, k) : T(0);
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            Size k = inner + thread / TILE + i * (THREADS / TILE), column = left + thread % TILE;
            next_y[i] = y.holds(k, column) ? y(k, column) : 0.0;
        }
    };

    load(begin);
    for (Size inner = begin, part = 1; inner < end; inner += DEEP, ++part) {
        for (int i = 0; i < LOADS; ++i) a_part[thread % DEEP][thread / DEEP + i * (THREADS / DEEP)] = next_a[i];
        for (int i = 0; i < LOADS; ++i) y_part[thread / TILE + i * (THREADS / TILE)][thread % TILE] = next_y[i];
        __syncthreads();
        load(inner + DEEP);
        sums.add(a_part, y_part);
        if (part % ROUND == 0) close_round();
        __syncthreads();
    }
    close_round();
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j)
            for (int e = 0; e < 4; ++e) {
                Size row = top + Sums::row(i, e), column = left + Sums::column(j, e);
                if (difference.holds(row, column)) atomicAdd(&difference(row, column), -totals.fragments[i][j][e]);
            }
}

// What `compare_sums` needs to know of the product's arithmetic.
enum { VARIANCE, PER_TERM, FLUSHED, LARGEST_SQUARE };

// One warp per row. Each difference becomes its size in units of the rounding errors that are to be expected of it:
//   √(numbers[VARIANCE] · (squares[i,g] + row_squares[i] · column_squares[g] · numbers[PER_TERM]))
// plus what is lost where tiny numbers are flushed to zero. `found`, for each row: the sum of these sizes, each at most 4; how many
// are not 0; the largest; its group; and how many groups cannot be judged, because A·B may overflow or holds NaN or infinities.
__global__ void compare_sums(Matrix<double> differences, Matrix<const double> squares, Matrix<const double> row_squares,
                             Matrix<const double> column_squares, Matrix<const double> numbers, Matrix<double> found)
{
    Size row = blockIdx.x * Size(blockDim.y) + threadIdx.y;
    int lane = threadIdx.x;
    if (row >= differences.rows) return;  // the whole warp
    double sum = 0, count = 0, worst = 0, where = 0, open = 0, flushed = numbers(0, FLUSHED);
    for (Size group = lane; group < differences.columns; group += 32) {
        double norms = row_squares(row, 0) * column_squares(0, group), size = fabs(differences(row, group));
        if (!(norms < numbers(0, LARGEST_SQUARE))) {
            open += 1;
            size = 0;
        } else if (size > 0 || size != size) {
            // Of a right product the squares are at most the norms; those of a wrong one must not excuse it, nor overflow.
            double variance = numbers(0, VARIANCE) * (fmin(squares(row, group), norms) + norms * numbers(0, PER_TERM));
            double lost = flushed * (1 + sqrt(row_squares(row, 0)) + sqrt(column_squares(0, group)));
            size /= sqrt(variance) + lost;
            if (!(size <= NOT_INTEGRAL)) size = NOT_INTEGRAL;  // NaN or infinity, where the product has neither
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
    }
}
