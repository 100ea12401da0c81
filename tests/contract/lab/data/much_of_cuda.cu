// What a lecture's program may use, all of it right.
// clang-format off
// prints: k<<<1, 2>>>(x);
// prints: 120 threads of 24 blocks, 240
// prints: sum 28, reversed 7 6 5 4 3 2 1 0
// prints: turned 31 0
// prints: squares 0 1 4 9
// prints: rows 1 2 3, 4 5 6, a pitch apart: 1
// prints: 1 device of 1024 threads a block, 4 host threads
// prints: 0 wrong elements
// prints: halves 240, tiles of 16 and 4, 2 odd lanes, pixel 31 224 1
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <omp.h>
#include <stdlib.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <vector>

/* k<<<1, 2>>>(x); */
const char* text = R"(k<<<1, 2>>>(x);)";
constexpr int LARGE = 1'000;
__constant__ float factor[2];
__constant__ const int one = 1;
__device__ int counter = 0;
__device__ const float table[2] = {0, 1};
extern __shared__ int turned[];

template <typename T>
struct Pair {
    T first, second;
};

template <int N, typename T>
__global__ void reverse(T* x)
{
    extern __shared__ float s[];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[N - 1 - threadIdx.x];
}

__device__ int of_other_end() { return turned[31 - threadIdx.x]; }
__global__ void turn(int* x)
{
    turned[threadIdx.x] = threadIdx.x;
    __syncthreads();
    x[threadIdx.x] = of_other_end();
}

template <typename T>
__global__ void square(T* x, Pair<T> scale = {1, 1})
{
    x[threadIdx.x] *= x[threadIdx.x] * scale.first;
}

__global__ void count(int* sum)
{
    if (threadIdx.z < blockDim.z && blockIdx.z < gridDim.z) atomicAdd(sum, one);
    atomicAdd(&counter, static_cast<int>(factor[1] * table[1]));
}

__global__ void sum_up(const int* x, int* sum)
{
    __shared__ int partial[8];
    partial[threadIdx.x] = x[threadIdx.x];
    for (int stride = 4; stride > 0; stride /= 2) {
        __syncthreads();
        if (threadIdx.x < stride) partial[threadIdx.x] += partial[threadIdx.x + stride];
    }
    if (threadIdx.x == 0) *sum = partial[0];
}

#define TILE 4
#define MIN(x, y) ((x) < (y) ? (x) : (y))
__global__ void multiply(int n, int l, int m, double* a, double* b, double* c)
{
    int y = threadIdx.y, x = threadIdx.x, i = blockDim.y * blockIdx.y + y, j = blockDim.x * blockIdx.x + x;
    double result = 0.0;
    for (int s = 0; s < l; s += TILE) {
        __shared__ double a_s[TILE][TILE], b_s[TILE][TILE];
        if (i < n && s + x < l) a_s[y][x] = a[i * l + s + x];
        if (s + y < l && j < m) b_s[y][x] = b[(s + y) * m + j];
        __syncthreads();
        for (int k = 0; k < MIN(TILE, l - s); k++)
            if (i < n && j < m) result += a_s[y][k] * b_s[k][x];
        __syncthreads();
    }
    if (i < n && j < m) c[i * m + j] = result;
}

namespace cg = cooperative_groups;
__global__ void grouped(const half* x, uchar4* pixels, float* sum, int* sizes)
{
    static __shared__ half2 copy[32];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
    __pipeline_memcpy_async(&copy[threadIdx.x], x + 2 * threadIdx.x, sizeof(half2));
    __pipeline_commit();
    __pipeline_wait_prior(0);
    block.sync();
    half2 pair = __hmul2(copy[31 - threadIdx.x], __float2half2_rn(0.5f));
    float total = cg::reduce(tile, __half2float(__low2half(pair) + pair.y), cg::plus<float>());
    if (tile.thread_rank() == 0) atomicAdd(sum, total);
    cg::thread_group four = cg::tiled_partition(tile, 4);
    if (threadIdx.x % 2 && threadIdx.x < 4) {
        cg::coalesced_group odd = cg::coalesced_threads();
        if (odd.thread_rank() == 0) sizes[0] = tile.size(), sizes[1] = four.size(), sizes[2] = odd.size();
    }
    pixels[threadIdx.x] = make_uchar4(threadIdx.x, 7 * 32, 1, 0);
}

static void groups()
{
    half* x; float* sum; int* sizes;
    uchar4 *pixels, last;
    cudaMallocManaged(&x, 64 * sizeof(half));
    cudaMalloc(&pixels, 64 * sizeof(half) + 64 * sizeof(uchar4));
    cudaMallocManaged(&sum, sizeof(float) + 3 * sizeof(int));
    sizes = reinterpret_cast<int*>(sum + 1);
    for (int i = 0; i < 64; ++i) x[i] = __float2half(7.5f);
    *sum = 0;
    half* copied = reinterpret_cast<half*>(pixels + 64);
    cudaMemcpy(copied, x, 64 * sizeof(half), cudaMemcpyDefault);
    grouped<<<1, 32>>>(copied, pixels, sum, sizes);
    cudaMemcpy(&last, pixels + 31, sizeof(last), cudaMemcpyDeviceToHost);
    printf("halves %g, tiles of %d and %d, %d odd lanes, pixel %d %d %d\n", *sum, sizes[0], sizes[1], sizes[2], last.x, last.y, last.z);
    cudaFree(x), cudaFree(pixels), cudaFree(sum);
}

#define LAUNCH(kernel, threads, ...) kernel<<<1, (threads)>>>(__VA_ARGS__)
#define HANDLE_ERROR(call) check((call), __LINE__)
static void check(cudaError_t error, int line)
{
    if (error == cudaSuccess) return;
    printf("%s in line %d\n", cudaGetErrorString(error), line);
    exit(EXIT_FAILURE);
}

static int wrong_elements(int n, int l, int m)
{
    double a[n * l], b[l * m], c[n * m], *d_a, *d_b, *d_c;
    for (int i = 0; i < n * l; i++) a[i] = rand() % 100;
    for (int i = 0; i < l * m; i++) b[i] = rand() % 100;
    cudaEvent_t start, stop; float elapsed = -1;
    HANDLE_ERROR(cudaEventCreate(&start)), HANDLE_ERROR(cudaEventCreate(&stop));
    HANDLE_ERROR(cudaEventRecord(start, 0));
    HANDLE_ERROR(cudaMalloc((void**)&d_a, sizeof(a))), HANDLE_ERROR(cudaMalloc((void**)&d_b, sizeof(b)));
    HANDLE_ERROR(cudaMalloc((void**)&d_c, sizeof(c)));
    HANDLE_ERROR(cudaMemcpy(d_a, a, sizeof(a), cudaMemcpyHostToDevice));
    HANDLE_ERROR(cudaMemcpy(d_b, b, sizeof(b), cudaMemcpyHostToDevice));
    multiply<<<dim3((m + TILE - 1) / TILE, (n + TILE - 1) / TILE), dim3(TILE, TILE)>>>(n, l, m, d_a, d_b, d_c);
    HANDLE_ERROR(cudaGetLastError());
    HANDLE_ERROR(cudaMemcpy(c, d_c, sizeof(c), cudaMemcpyDeviceToHost));
    HANDLE_ERROR(cudaEventRecord(stop, 0)), HANDLE_ERROR(cudaEventSynchronize(stop));
    HANDLE_ERROR(cudaEventElapsedTime(&elapsed, start, stop));
    int wrong = elapsed < 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            double sum = 0;
            for (int k = 0; k < l; k++) sum += a[i * l + k] * b[k * m + j];
            wrong += sum != c[i * m + j];
        }
    for (double* each : {d_a, d_b}) cudaFree(each);
    cudaEventDestroy(start), cudaEventDestroy(stop);
    return wrong;  // without cudaFree(d_c), which is a note
}

int main(int argc, char** argv)
{
    if (argc < 3) return 2;
    std::cout << text << std::endl;
    int *d_sum, sum = 0, counted;
    float factors[2] = {1, 2};
    void* d_factor; cudaStream_t stream;
    cudaStreamCreate(&stream), cudaMallocAsync(&d_sum, sizeof(int), stream);
    cudaMemsetAsync(d_sum, 0, sizeof(int), stream);
    cudaGetSymbolAddress(&d_factor, factor), cudaMemcpy(d_factor, factors, sizeof(factors), cudaMemcpyHostToDevice);
    count<<<dim3(2, 3, 4),  // blocks
            dim3(1, 1, 5), 0, stream>>>(d_sum);
    cudaMemcpyAsync(&sum, d_sum, sizeof(int), cudaMemcpyDeviceToHost, stream);
    while (cudaStreamQuery(stream) != cudaSuccess) {}
    cudaMemcpyFromSymbol(&counted, counter, sizeof(int));
    printf("%d threads of %d blocks, %d\n", sum, 24, counted);

    std::vector<int> numbers = {0, 1, 2, 3, 4, 5, 6, 7};
    int* d_numbers;
    cudaMalloc(&d_numbers, numbers.size() * sizeof(int));
    cudaMemcpy(d_numbers, numbers.data(), numbers.size() * sizeof(int), cudaMemcpyHostToDevice);
    LAUNCH(sum_up, 8, d_numbers, d_sum);
    cudaMemcpy(&sum, d_sum, sizeof(int), cudaMemcpyDeviceToHost);
    reverse<8><<<1, 8, 8 * sizeof(float)>>>(d_numbers);
    cudaMemcpy(numbers.data(), d_numbers, numbers.size() * sizeof(int), cudaMemcpyDeviceToHost);
    printf("sum %d, reversed", sum);
    for (int each : numbers) std::cout << ' ' << each << std::flush;
    std::cout << std::endl;

    int ends[32], *d_ends;
    cudaHostRegister(ends, sizeof(ends), cudaHostRegisterMapped), cudaHostGetDevicePointer(&d_ends, ends, 0);
    turn<<<1, 32, sizeof(ends)>>>(d_ends);
    cudaDeviceSynchronize(), cudaHostUnregister(ends);
    printf("turned %d %d\n", ends[0], ends[31]);

    float* squares;
    cudaMallocManaged(&squares, 4 * sizeof(float));
    for (int i = 0; i < 4; ++i) squares[i] = i;
    square<<<1, 4>>>(squares, Pair<float>{1, 1});
    cudaDeviceSynchronize();
    printf("squares %g %g %g %g\n", squares[0], squares[1], squares[2], squares[3]);

    int row_by_row[6] = {1, 2, 3, 4, 5, 6}, copied[6], *pitched;
    size_t pitch, width = 3 * sizeof(int);
    cudaMallocPitch((void**)&pitched, &pitch, width, 2);
    cudaMemcpy2D(pitched, pitch, row_by_row, width, width, 2, cudaMemcpyHostToDevice);
    cudaMemcpy2DAsync(copied, width, pitched, pitch, width, 2, cudaMemcpyDeviceToHost);
    printf("rows %d %d %d, %d %d %d, a pitch apart: %d\n", copied[0], copied[1], copied[2], copied[3], copied[4], copied[5],
           pitch > width);

    int devices, threads = 0;
    cudaGetDeviceCount(&devices);
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
#pragma omp parallel num_threads(4)
    {
#pragma omp atomic
        ++threads;
    }
    auto shared = std::make_shared<int>(threads);
    printf("%d device of %d threads a block, %d host threads\n", devices, properties.maxThreadsDim[1], *shared);
    for (void* each : {(void*)d_numbers, (void*)squares, (void*)pitched}) cudaFree(each);
    cudaFreeAsync(d_sum, stream), cudaStreamDestroy(stream);
    printf("%d wrong elements\n", wrong_elements(atoi(argv[1]), atoi(argv[2]), 5));
    groups();
    return LARGE != 1000;
}
