// Races and missing values do not stop a kernel, so one run finds those of all kernels: the marked lines, and no others.
#include <stdio.h>

__device__ int total;

__global__ void no_barrier(float* x)
{
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];  //! data-race
    x[threadIdx.x] = s[63 - threadIdx.x];  //! uninitialised
}
// The last thread writes what the others have read before it.
__global__ void written_after_read(float* x)
{
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    float first = s[0];  //! data-race
    if (threadIdx.x == 63) s[0] = first + 1;
    x[threadIdx.x] = first;
}
// So does the last lane of a warp.
__global__ void written_after_read_by_a_lane(float* x)
{
    __shared__ float s[32];
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    float first = s[0];  //! data-race
    if (threadIdx.x == 31) s[0] = first + 1;
    x[threadIdx.x] = first;
}
// So does the last block.
__global__ void written_after_read_by_a_block(float* x, float* y)
{
    y[blockIdx.x] = x[0];  //! data-race
    if (blockIdx.x == 3) x[0] = 5;
}
__global__ void all_write(int* x)
{
    x[0] = threadIdx.x;  //! data-race
}
__global__ void blocks_add(int* sum)
{
    sum[0] += blockIdx.x;  //! data-race
}
__global__ void blocks_count()
{
    total = total + 1;  //! data-race
}
__global__ void some_add_atomically(int* sum)
{
    if (threadIdx.x < 4)
        atomicAdd(sum, 1);  //! data-race
    else
        sum[0] = 7;  //! data-race
}
__global__ void sum_read_too_early(float* x)
{
    __shared__ float sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, x[threadIdx.x]);  //! data-race
    x[threadIdx.x] = sum;
}
__global__ void a_barrier_of_the_warp_alone(float* x)
{
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];  //! data-race
    __syncwarp();
    x[threadIdx.x] = s[63 - threadIdx.x];  //! uninitialised
}
__global__ void halves(short* x)
{
    __shared__ short s[64];
    s[threadIdx.x / 2] = threadIdx.x;  //! data-race
    __syncthreads();
    x[threadIdx.x] = s[threadIdx.x / 2];
}
__global__ void shared_without_a_value(float* x)
{
    __shared__ float s[8];
    if (threadIdx.x < 7) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) x[0] = s[7];  //! uninitialised
}
__global__ void half_a_word_without_a_value(float* x)
{
    __shared__ short s[2];
    s[0] = threadIdx.x;
    x[threadIdx.x] = s[1];  //! uninitialised
}
// What the block before has left there is no value.
__global__ void shared_of_the_block_before(float* x)
{
    __shared__ float s[1];
    if (blockIdx.x == 0) s[0] = 1;
    x[blockIdx.x] = s[0];  //! uninitialised
}
__global__ void dynamic_without_a_value(float* x)
{
    extern __shared__ float part[];
    if (threadIdx.x) part[threadIdx.x - 1] = threadIdx.x;
    __syncthreads();
    x[threadIdx.x] = part[31 - threadIdx.x];  //! uninitialised
}
__global__ void memory_without_a_value(const float* none, float* x)
{
    x[threadIdx.x] = none[threadIdx.x];  //! uninitialised
}
__global__ void added_to_nothing(int* none)
{
    atomicAdd(none + 9, 1);  //! uninitialised
}
__global__ void variable_without_a_value(float* x)
{
    float sum;
    sum += x[0];  //! no-value
    x[0] = sum;
}

// What resembles these, and is right.
__global__ void turned(float* x)
{
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[63 - threadIdx.x];
    __syncthreads();
    s[threadIdx.x] = 0;
}
__global__ void turned_by_a_warp(float* x)
{
    __shared__ float s[64];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 * 32;
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    float other = s[warp + 31 - lane];
    __syncwarp();
    s[threadIdx.x] = other;
    x[threadIdx.x] = other + __shfl_xor_sync(0xffffffffu, s[threadIdx.x], 1);
}
__global__ void added_up(int* sum)
{
    if (threadIdx.x == 0 && blockIdx.x == 0) atomicExch(sum, 0);
    atomicAdd(sum, 1);
    atomicMax(&total, 5);
}
__global__ void greatest(float* x)
{
    __shared__ int most;
    if (threadIdx.x == 0) most = 0;
    __syncthreads();
    for (int old = most, now; old < threadIdx.x && (now = atomicCAS(&most, old, threadIdx.x)) != old;) old = now;
    __syncthreads();
    x[threadIdx.x] = most;
}
// The last block to come reads what the others have written, behind fences.
__global__ void last_block(float* x, int* arrived, float* sum)
{
    x[blockIdx.x] = blockIdx.x;
    __threadfence();
    if (atomicAdd(arrived, 1) == gridDim.x - 1)
        for (int i = 0; i < gridDim.x; ++i) *sum += x[i];
}
__global__ void own_bytes(char* x)
{
    __shared__ char s[64];
    s[threadIdx.x] = threadIdx.x;
    x[threadIdx.x] = s[threadIdx.x];
}
__global__ void read_by_all(const float* x, float* y) { y[blockIdx.x * blockDim.x + threadIdx.x] = x[0]; }

int main()
{
    float host[256] = {}, *x, *y, *none;
    int *sums, *zeros;
    short* shorts;
    cudaMalloc(&x, sizeof(host)), cudaMalloc(&y, sizeof(host)), cudaMalloc(&none, sizeof(host));
    cudaMalloc(&sums, 256), cudaMalloc(&shorts, 256), cudaMalloc(&zeros, 256);
    cudaMemcpy(x, host, sizeof(host), cudaMemcpyHostToDevice);
    cudaMemset(zeros, 0, 256);
    no_barrier<<<1, 64>>>(x);
    written_after_read<<<1, 64>>>(x);
    written_after_read_by_a_lane<<<1, 32>>>(x);
    written_after_read_by_a_block<<<4, 1>>>(x, y);
    all_write<<<1, 8>>>(sums);
    blocks_add<<<4, 1>>>(zeros);
    blocks_count<<<4, 1>>>();
    some_add_atomically<<<1, 8>>>(zeros);
    a_barrier_of_the_warp_alone<<<1, 64>>>(x);
    halves<<<1, 64>>>(shorts);
    sum_read_too_early<<<1, 64>>>(x);
    greatest<<<1, 64>>>(x);
    shared_without_a_value<<<1, 8>>>(x);
    half_a_word_without_a_value<<<1, 1>>>(x);
    shared_of_the_block_before<<<2, 1>>>(x);
    dynamic_without_a_value<<<1, 32, 128>>>(x);
    memory_without_a_value<<<1, 8>>>(none, x);
    added_to_nothing<<<1, 1>>>((int*)none);
    variable_without_a_value<<<1, 1>>>(x);
    turned<<<1, 64>>>(x);
    turned_by_a_warp<<<1, 64>>>(x);
    added_up<<<4, 64>>>(sums);
    last_block<<<8, 1>>>(x, zeros + 1, (float*)zeros + 2);
    own_bytes<<<1, 64>>>((char*)shorts);
    read_by_all<<<2, 64>>>(x, y);
    read_by_all<<<2, 64>>>(y, x);
    cudaMemcpy(host, y, sizeof(float) * 128, cudaMemcpyDeviceToHost);
    for (void* each : {(void*)x, (void*)y, (void*)none, (void*)sums, (void*)shorts, (void*)zeros}) cudaFree(each);
}
