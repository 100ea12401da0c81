// expect: out of bounds: line 15 reads d_A.elements\[150\], and it has 150 elements \(allocated in line 25\) \(MatMulKernel, launched in line 32: block \(0, 1\), thread \(0, 2\)\)
// expect: first CUDA call that failed: cudaThreadSynchronize in line 33, .*; the program looks
#include <stdio.h>

typedef struct {
    int width, height;
    float* elements;
} Matrix;

__global__ void MatMulKernel(Matrix A, Matrix B, Matrix C)
{
    float value = 0;
    int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row > A.height || col > B.width) return;
    for (int e = 0; e < A.width; ++e) value += A.elements[row * A.width + e] * B.elements[e * B.width + (col < B.width ? col : 0)];
    if (row < A.height && col < B.width) C.elements[row * C.width + col] = value;
}

int main(void)
{
    Matrix d_A = {15, 10}, d_B = {8, 15}, d_C = {8, 10};
    static float ones[150];
    for (int i = 0; i < 150; ++i) ones[i] = 1;

    cudaError_t err = cudaMalloc(&d_A.elements, sizeof(float) * d_A.width * d_A.height);
    cudaMalloc(&d_B.elements, sizeof(float) * d_B.width * d_B.height);
    cudaMalloc(&d_C.elements, sizeof(float) * d_C.width * d_C.height);
    cudaMemcpy(d_A.elements, ones, sizeof(ones), cudaMemcpyHostToDevice);
    cudaMemcpy(d_B.elements, ones, 15 * 8 * sizeof(float), cudaMemcpyHostToDevice);

    dim3 dimBlock(8, 8), dimGrid(1, 2);
    MatMulKernel<<<dimGrid, dimBlock>>>(d_A, d_B, d_C);
    err = cudaThreadSynchronize();
    printf("Run kernel: %s\n", cudaGetErrorString(err));
}
