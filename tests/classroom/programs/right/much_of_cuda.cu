// Templates, streams, constants, three dimensions, atomic operations, managed memory, OpenMP on the host, text that only looks like a launch.
// stdout: k<<<1, 2>>>\(x\);
// stdout: 120 threads of 24 blocks, 240
// stdout: sum 28
// stdout: reversed 7 6 5 4 3 2 1 0
// stdout: squares 0 1 4 9
// stdout: rows 1 2 3, 4 5 6, a pitch apart: 1
// stdout: 1 device of 1024 threads a block
// stdout: 4 host threads
// note: streams
#include <cstdio>
#include <iostream>
#include <memory>
#include <vector>
#include <omp.h>

/* k<<<1, 2>>>(x); */
const char* text = R"(k<<<1, 2>>>(x);)";
constexpr int LARGE = 1'000;
__constant__ float factor[2];
__constant__ const int one = 1;
__device__ int counter = 0;
__device__ const float table[2] = {0, 1};

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

#define LAUNCH(kernel, threads, ...) kernel<<<1, (threads)>>>(__VA_ARGS__)

int main()
{
    std::cout << text << std::endl;
    int *d_sum, sum = 0;
    float factors[2] = {1, 2};
    cudaMalloc(&d_sum, sizeof(int));
    cudaMemset(d_sum, 0, sizeof(int));
    cudaMemcpyToSymbol(factor, factors, sizeof(factors));
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    count<<<dim3(2, 3, 4),  // blocks
            dim3(1, 1, 5), 0, stream>>>(d_sum);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    cudaMemcpy(&sum, d_sum, sizeof(int), cudaMemcpyDeviceToHost);
    int counted;
    cudaMemcpyFromSymbol(&counted, counter, sizeof(int));
    printf("%d threads of %d blocks, %d\n", sum, 24, counted);

    std::vector<int> numbers = {0, 1, 2, 3, 4, 5, 6, 7};
    int* d_numbers;
    cudaMalloc(&d_numbers, numbers.size() * sizeof(int));
    cudaMemcpy(d_numbers, numbers.data(), numbers.size() * sizeof(int), cudaMemcpyHostToDevice);
    LAUNCH(sum_up, 8, d_numbers, d_sum);
    cudaMemcpy(&sum, d_sum, sizeof(int), cudaMemcpyDeviceToHost);
    printf("sum %d\n", sum);
    reverse<8><<<1, 8, 8 * sizeof(float)>>>(d_numbers);
    cudaMemcpy(numbers.data(), d_numbers, numbers.size() * sizeof(int), cudaMemcpyDeviceToHost);
    std::cout << "reversed";
    for (int each : numbers) std::cout << ' ' << each;
    std::cout << '\n';

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
    cudaFree(pitched);

    int devices;
    cudaGetDeviceCount(&devices);
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
    printf("%d device of %d threads a block\n", devices, properties.maxThreadsPerBlock);
    int threads = 0;
#pragma omp parallel num_threads(4)
    {
#pragma omp atomic
        ++threads;
    }
    auto shared = std::make_shared<int>(threads);
    printf("%d host threads\n", *shared);
    for (void* each : {(void*)d_sum, (void*)d_numbers, (void*)squares}) cudaFree(each);
    return LARGE != 1000;
}
