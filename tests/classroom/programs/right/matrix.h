// Matrices row by row, as the programs beside this file have them.
#include <stdio.h>
#include <stdlib.h>
#include <cuda_runtime.h>

typedef struct {
    int width, height, stride;
    float* elements;
} Matrix;

#define BLOCK_SIZE 8

__global__ void MatMulKernel(const Matrix, const Matrix, Matrix);

static Matrix host_matrix(int height, int width, int modulus)
{
    Matrix m;
    m.height = height;
    m.width = m.stride = width;
    m.elements = (float*)malloc(height * width * sizeof(float));
    for (int i = 0; i < height * width; i++) m.elements[i] = (float)(rand() % modulus);
    return m;
}

static int wrong_elements(const Matrix A, const Matrix B, const Matrix C)
{
    int wrong = 0;
    for (int i = 0; i < C.height; i++)
        for (int j = 0; j < C.width; j++) {
            float sum = 0;
            for (int e = 0; e < A.width; e++) sum += A.elements[i * A.width + e] * B.elements[e * B.width + j];
            wrong += sum != C.elements[i * C.width + j];
        }
    return wrong;
}
