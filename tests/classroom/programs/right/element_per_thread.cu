// arguments: 10 15 8
// stdout: Run kernel: no error
// stdout: 0 of 80 elements are wrong
#include "matrix.h"

Matrix to_device(const Matrix host, cudaMemcpyKind kind)
{
    Matrix device = host;
    size_t size = host.width * host.height * sizeof(float);
    cudaError_t err = cudaMalloc(&device.elements, size);
    printf("CUDA malloc: %s\n", cudaGetErrorString(err));
    if (kind == cudaMemcpyHostToDevice) {
        err = cudaMemcpy(device.elements, host.elements, size, kind);
        printf("Copy to device: %s\n", cudaGetErrorString(err));
    }
    return device;
}

void MatMul(const Matrix A, const Matrix B, Matrix C)
{
    Matrix d_A = to_device(A, cudaMemcpyHostToDevice), d_B = to_device(B, cudaMemcpyHostToDevice);
    Matrix d_C = to_device(C, cudaMemcpyDeviceToHost);
    dim3 dimBlock(BLOCK_SIZE, BLOCK_SIZE);
    dim3 dimGrid((B.width + dimBlock.x - 1) / dimBlock.x, (A.height + dimBlock.y - 1) / dimBlock.y);
    MatMulKernel<<<dimGrid, dimBlock>>>(d_A, d_B, d_C);
    cudaError_t err = cudaThreadSynchronize();
    printf("Run kernel: %s\n", cudaGetErrorString(err));
    err = cudaMemcpy(C.elements, d_C.elements, C.width * C.height * sizeof(float), cudaMemcpyDeviceToHost);
    printf("Copy C off of device: %s\n", cudaGetErrorString(err));
    cudaFree(d_A.elements);
    cudaFree(d_B.elements);
    cudaFree(d_C.elements);
}

__global__ void MatMulKernel(Matrix A, Matrix B, Matrix C)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= A.height || col >= B.width) return;
    float value = 0.0;
    for (int e = 0; e < A.width; ++e) value += A.elements[row * A.width + e] * B.elements[e * B.width + col];
    C.elements[row * C.width + col] = value;
}

int main(int argc, char* argv[])
{
    if (argc < 4) return 2;
    int a1 = atoi(argv[1]), a2 = atoi(argv[2]), b2 = atoi(argv[3]);
    Matrix A = host_matrix(a1, a2, 3), B = host_matrix(a2, b2, 2), C = host_matrix(a1, b2, 5);
    MatMul(A, B, C);
    int wrong = wrong_elements(A, B, C);
    printf("%d of %d elements are wrong\n", wrong, C.width * C.height);
    return wrong > 0;
}
