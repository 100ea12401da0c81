// A thread computes a whole row of C; the names of the sizes are those of the matrices.
#define KERNEL __global__ void
KERNEL rows(const float* A, const float* B, float* C, int hA, int wA, int wB)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= hA) return;
    for (int j = 0; j < wB; ++j) {
        float sum = 0;
        for (int k = 0; k < wA; ++k) sum += A[row * wA + k] * B[k * wB + j];
        C[row * wB + j] = sum;
    }
}
