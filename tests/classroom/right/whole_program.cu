/* A whole program: structs, a prototype, host code with a launch, and main(). Its kernel alone is judged. */
// kernel: MatMulKernel
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

typedef struct {
    int width, height;
    float* elements;
} Matrix;

const int BLOCK_SIZE = 16;

__global__ void MatMulKernel(const Matrix, const Matrix, Matrix);

void check(cudaError_t error, const char* what)
{
    if (error != cudaSuccess) printf("%s: %s { \n", what, cudaGetErrorString(error));
}

Matrix on_device(const Matrix& host)
{
    Matrix device = host;
    check(cudaMalloc(&device.elements, host.width * host.height * sizeof(float)), "cudaMalloc");
    return device;
}

__device__ float dot(const Matrix& A, const Matrix& B, int row, int col)
{
    float sum = 0;
    for (int e = 0; e < A.width; ++e) sum += A.elements[row * A.width + e] * B.elements[e * B.width + col];
    return sum;
}

__global__ void MatMulKernel(Matrix A, Matrix B, Matrix C)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= A.height || col >= B.width) return;
    C.elements[row * C.width + col] = dot(A, B, row, col);
}

int main(int argc, char* argv[])
{
    Matrix a = {32, 32, nullptr};
    Matrix d = on_device(a);
    dim3 block(BLOCK_SIZE, BLOCK_SIZE), grid(2, 2);
    MatMulKernel<<<grid, block>>>(d, d, d);
    check(cudaGetLastError(), "MatMulKernel");
    return 0;
}
