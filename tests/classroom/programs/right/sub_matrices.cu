// arguments: 16 24 8
// stdout: Run kernel: no error
// stdout: 0 of 128 elements are wrong
#include "matrix.h"

__device__ float GetElement(const Matrix A, int row, int col) { return A.elements[row * A.stride + col]; }
__device__ void SetElement(Matrix A, int row, int col, float value) { A.elements[row * A.stride + col] = value; }
__device__ Matrix GetSubMatrix(Matrix A, int row, int col)
{
    Matrix sub = A;
    sub.width = sub.height = BLOCK_SIZE;
    sub.elements = &A.elements[A.stride * BLOCK_SIZE * row + BLOCK_SIZE * col];
    return sub;
}

__global__ void MatMulKernel(Matrix A, Matrix B, Matrix C)
{
    Matrix Csub = GetSubMatrix(C, blockIdx.y, blockIdx.x);
    int row = threadIdx.y, col = threadIdx.x;
    float value = 0.0;
    for (int m = 0; m < A.width / BLOCK_SIZE; ++m) {
        Matrix Asub = GetSubMatrix(A, blockIdx.y, m), Bsub = GetSubMatrix(B, m, blockIdx.x);
        __shared__ float As[BLOCK_SIZE][BLOCK_SIZE];
        __shared__ float Bs[BLOCK_SIZE][BLOCK_SIZE];
        As[row][col] = GetElement(Asub, row, col);
        Bs[row][col] = GetElement(Bsub, row, col);
        __syncthreads();
        for (int e = 0; e < BLOCK_SIZE; ++e) value += As[row][e] * Bs[e][col];
        __syncthreads();
    }
    SetElement(Csub, row, col, value);
}

int main(int argc, char* argv[])
{
    int a1 = atoi(argv[1]), a2 = atoi(argv[2]), b2 = atoi(argv[3]);
    Matrix A = host_matrix(a1, a2, 3), B = host_matrix(a2, b2, 2), C = host_matrix(a1, b2, 5), d_A = A, d_B = B, d_C = C;
    size_t bytes_of_a = a1 * a2 * sizeof(float), bytes_of_b = a2 * b2 * sizeof(float), bytes_of_c = a1 * b2 * sizeof(float);
    cudaMalloc(&d_A.elements, bytes_of_a);
    cudaMalloc(&d_B.elements, bytes_of_b);
    cudaMalloc(&d_C.elements, bytes_of_c);
    cudaMemcpy(d_A.elements, A.elements, bytes_of_a, cudaMemcpyHostToDevice);
    cudaMemcpy(d_B.elements, B.elements, bytes_of_b, cudaMemcpyHostToDevice);
    dim3 dimBlock(BLOCK_SIZE, BLOCK_SIZE), dimGrid(b2 / dimBlock.x, a1 / dimBlock.y);
    MatMulKernel<<<dimGrid, dimBlock>>>(d_A, d_B, d_C);
    printf("Run kernel: %s\n", cudaGetErrorString(cudaDeviceSynchronize()));
    cudaMemcpy(C.elements, d_C.elements, bytes_of_c, cudaMemcpyDeviceToHost);
    int wrong = wrong_elements(A, B, C);
    printf("%d of %d elements are wrong\n", wrong, a1 * b2);
    cudaFree(d_A.elements);
    cudaFree(d_B.elements);
    cudaFree(d_C.elements);
    return wrong > 0;
}
