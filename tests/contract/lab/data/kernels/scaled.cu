// BLAS's GEMM, C = alpha·A·B + beta·C, with C first.
__global__ void gemm(double* C, double alpha, const double* A, const double* B, double beta, int m, int n, int k)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || column >= n) return;
    double sum = 0;
    for (int e = 0; e < k; ++e) sum += A[row * k + e] * B[e * n + column];
    C[row * n + column] = alpha * sum + beta * C[row * n + column];
}
