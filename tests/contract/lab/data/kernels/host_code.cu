// What host code has: macros with braces, the C++ library, types of CUDA.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <vector>

#define CHECK(call)                                                           \
    do {                                                                      \
        cudaError_t error = (call);                                           \
        if (error != cudaSuccess) {                                           \
            std::cerr << cudaGetErrorString(error) << " <<< here" << std::endl; \
            exit(1);                                                          \
        }                                                                     \
    } while (0)
#define MAX(x, y) ({ (x) > (y) ? (x) : (y); })

using std::cout;
using namespace std::chrono;
typedef std::vector<double> Values;
cudaEvent_t start, stop;
bool verify(const Values& a, const Values& b);

__global__ void multiply(int n, int l, int m, double* a, double* b, double* c)
{
    int i = blockDim.y * blockIdx.y + threadIdx.y, j = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n && j < m) {
        double result = 0.0;
        for (int k = 0; k < l; k++) result += a[i * l + k] * b[k * m + j];
        c[i * m + j] = result;
    }
}

bool verify(const Values& a, const Values& b) { return a == b; }

int main()
{
    Values a(100), c(100);
    CHECK(cudaSetDevice(0));
    cout << verify(a, c) << '\n';
}
