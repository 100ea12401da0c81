// A fault for each case; main() takes the names of those to run. The lab must name the lines that are marked, and no others.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Matrix {
    int width, height;
    float* elements;
};
__device__ int counter[4];

__global__ void set(int* x) { x[threadIdx.x] = 1; }  //! freed: illegal-address //! null: illegal-address //! unseen: illegal-address //! no memory: illegal-address
__global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }  //! host pointer: illegal-address
__global__ void product(Matrix A, Matrix B, Matrix C)
{
    int row = threadIdx.y, column = threadIdx.x;
    if (row > A.height || column >= B.width) return;
    float sum = 0;
    for (int k = 0; k < A.width; ++k)
        sum += A.elements[row * A.width + k] * B.elements[k * B.width + column];  //! a row too many: out-of-bounds
    C.elements[row * C.width + column] = sum;
}
__global__ void shifted(double* x) { x[static_cast<int>(threadIdx.x) - 1] = 0; }  //! before the first: out-of-bounds
__global__ void beyond_shared(int* x, int n)
{
    __shared__ int s[8];
    if (threadIdx.x < 8) s[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x == 8) s[n] = 1;  //! beyond a shared array: out-of-bounds
    x[threadIdx.x] = s[0];
}
extern __shared__ char part[];
__global__ void beyond_dynamic() { part[threadIdx.x] = 1; }  //! beyond dynamic shared memory: out-of-bounds
__global__ void beyond_variable(int n) { counter[n] = 1; }  //! beyond a variable: out-of-bounds
__global__ void leaves(int* x)
{
    if (threadIdx.x > 5) return;
    __syncthreads();  //! some leave: kernel-barrier
    x[threadIdx.x] = 0;
}
__global__ void parts(int* x)
{
    if (threadIdx.x < 40)
        __syncthreads();
    else
        __syncthreads();  //! two barriers: kernel-barrier
    x[threadIdx.x] = 0;
}
__global__ void waits(volatile int* flag) { while (*flag == 0) {} }  //! endless: no-end
__global__ void divides(int* x, int n) { x[0] = 8 / n; }  //! divided by zero: zero-division
__global__ void doubts(int n) { assert(n == 8); }  //! assertion: kernel-assert
__global__ void large(float* x)
{  //! large stack: segmentation-fault
    volatile float own[100000];
    for (int i = 0; i < 100000; ++i) own[i] = i;
    x[0] = own[99];
}
__global__ void greet() { printf("hello\n"); }

static void fetch(int* x, const int* d_x, size_t bytes) { memcpy(x, d_x, bytes); }  //! copied by the host: segmentation-fault

static int run(const char* wanted, char** argv, int argc)
{
    auto is = [&](const char* name) { return !strcmp(wanted, name); };
    int ints[64] = {}, *x = nullptr;
    double doubles[10] = {}, *d = nullptr;
    if (is("freed")) {
        cudaMalloc(&x, 16), cudaFree(x);
        set<<<1, 4>>>(x);
        cudaDeviceSynchronize();  //! freed: cudaErrorIllegalAddress
    } else if (is("null")) {
        set<<<1, 4>>>(x);
        cudaDeviceSynchronize();  //! null: cudaErrorIllegalAddress
    } else if (is("unseen")) {
        set<<<1, 4>>>(x);
    } else if (is("no memory")) {
        cudaMalloc(&x, 8000000000);  //! no memory: cudaErrorMemoryAllocation
        set<<<1, 4>>>(x);
        cudaDeviceSynchronize();
    } else if (is("host pointer")) {
        float *h = (float*)calloc(8, 4), *d_y;
        cudaMalloc(&d_y, 32);
        twice<<<1, 8>>>(h, d_y);
        cudaMemcpy(h, d_y, 32, cudaMemcpyDeviceToHost);  //! host pointer: cudaErrorIllegalAddress
    } else if (is("a row too many")) {
        Matrix A = {15, 10}, B = {8, 15}, C = {8, 11};
        for (Matrix* m : {&A, &B, &C}) {
            cudaMalloc(&m->elements, m->width * m->height * sizeof(float));
            cudaMemset(m->elements, 0, m->width * m->height * sizeof(float));
        }
        product<<<1, dim3(8, 16)>>>(A, B, C);
        cudaDeviceSynchronize();  //! a row too many: cudaErrorIllegalAddress
    } else if (is("before the first")) {
        cudaMalloc(&d, 80);
        shifted<<<1, 10>>>(d);
        cudaDeviceSynchronize();  //! before the first: cudaErrorIllegalAddress
    } else if (is("beyond a shared array")) {
        cudaMalloc(&x, 64);
        beyond_shared<<<1, 16>>>(x, 8);
        cudaDeviceSynchronize();  //! beyond a shared array: cudaErrorIllegalAddress
    } else if (is("beyond dynamic shared memory")) {
        beyond_dynamic<<<1, 32, 31>>>();
        cudaDeviceSynchronize();  //! beyond dynamic shared memory: cudaErrorIllegalAddress
    } else if (is("beyond a variable")) {
        beyond_variable<<<1, 1>>>(4);
        cudaDeviceSynchronize();  //! beyond a variable: cudaErrorIllegalAddress
    } else if (is("some leave")) {
        cudaMalloc(&x, 64);
        leaves<<<1, 16>>>(x);
        cudaDeviceSynchronize();  //! some leave: cudaErrorLaunchFailure
    } else if (is("two barriers")) {
        cudaMalloc(&x, 256);
        parts<<<1, 64>>>(x);
        cudaDeviceSynchronize();  //! two barriers: cudaErrorLaunchFailure
    } else if (is("endless")) {
        cudaMalloc(&x, 4), cudaMemset(x, 0, 4);
        waits<<<1, 1>>>(x);
        cudaDeviceSynchronize();
    } else if (is("divided by zero")) {
        cudaMalloc(&x, 4);
        divides<<<1, 1>>>(x, 0);
        cudaDeviceSynchronize();
    } else if (is("assertion")) {
        doubts<<<1, 1>>>(argc);
        cudaDeviceSynchronize();  //! assertion: cudaErrorAssert
    } else if (is("large stack")) {
        float* f;
        cudaMalloc(&f, 4);
        large<<<1, 1>>>(f);
        cudaDeviceSynchronize();
    } else if (is("used by the host")) {
        cudaMalloc(&x, 16);
        x[1] = 3;  //! used by the host: segmentation-fault
    } else if (is("copied by the host")) {
        cudaMalloc(&x, 256), cudaMemset(x, 0, 256);
        fetch(ints, x, 32 * argc);
    } else if (is("crash of the host")) {
        ints[1] = argv[argc][0];  //! crash of the host: segmentation-fault
    } else if (is("managed too early")) {
        cudaMallocManaged(&x, 16);
        set<<<1, 4>>>(x);
        printf("%d\n", x[0]);  //! managed too early: data-race
        cudaFree(x);
    } else if (is("wrong direction")) {
        cudaMalloc(&x, 64), cudaMemset(x, 0, 64);
        cudaError_t error = cudaMemcpy(ints, x, 64, cudaMemcpyHostToDevice);  //! wrong direction: cudaErrorInvalidValue
        printf("%s\n", cudaGetErrorString(error));
    } else if (is("no direction")) {
        cudaMemcpy(ints, doubles, 64, static_cast<cudaMemcpyKind>(5));  //! no direction: cudaErrorInvalidMemcpyDirection
    } else if (is("copy of too much")) {
        cudaMalloc(&d, 10);
        cudaMemcpy(d, doubles, sizeof(doubles), cudaMemcpyHostToDevice);  //! copy of too much: cudaErrorInvalidValue
    } else if (is("freed twice")) {
        cudaMalloc(&x, 16);
        cudaFree(x);
        cudaFree(x);  //! freed twice: cudaErrorInvalidValue
    } else if (is("copied without a value")) {
        cudaMalloc(&x, 256);
        cudaMemset(x, 0, 8);
        cudaMemcpy(ints, x, 256, cudaMemcpyDeviceToHost);  //! copied without a value: uninitialised
    } else if (is("block too large")) {
        cudaMalloc(&x, 5000);
        set<<<1, dim3(32, 33)>>>(x);  //! block too large: cudaErrorInvalidConfiguration
    } else if (is("block too deep")) {
        cudaMalloc(&x, 5000);
        set<<<1, dim3(1, 1, 65)>>>(x);  //! block too deep: cudaErrorInvalidConfiguration
        printf("%s\n", cudaGetErrorString(cudaGetLastError()));
    } else if (is("empty grid")) {
        set<<<dim3(1, 0), 4>>>(x);  //! empty grid: cudaErrorInvalidConfiguration
    } else if (is("too much shared memory")) {
        set<<<1, 4, 50000>>>(x);  //! too much shared memory: cudaErrorInvalidValue
    } else if (is("beyond a symbol")) {
        cudaMemcpyToSymbol(counter, ints, 20);  //! beyond a symbol: cudaErrorInvalidValue
    } else if (is("no such device")) {
        cudaSetDevice(1);  //! no such device: cudaErrorInvalidDevice
    } else if (is("exit status")) {
        greet<<<1, 1>>>();
        cudaDeviceSynchronize();
        exit(3);
    }
    return ints[1];
}

int main(int argc, char** argv)
{
    int sum = 0;
    for (int i = 1; i < argc; ++i) {
        sum += run(argv[i], argv, argc);
        if (argc > 2) cudaDeviceReset();  // which ends what an error has broken
    }
    return sum;
}
