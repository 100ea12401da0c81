// expect: the first C\[0\]\[\d+\]: (\S+) instead of (?!\2,)\S+, written by .*; right to the digits of a float
__global__ void multiply(const double* A, const double* B, double* C, int n)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || column >= n) return;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += A[row * n + k] * B[k * n + column];
    C[row * n + column] = sum;
}
