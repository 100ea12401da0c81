// expect: 413 of C's 925 elements never written
// lab: block(16, 16) grid(m / 16, n / 16)
__global__ void multiply(const float* A, const float* B, float* C, int n, int l, int m)
{
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    if (row >= n || column >= m) return;
    float sum = 0;
    for (int k = 0; k < l; ++k) sum += A[row * l + k] * B[k * m + column];
    C[row * m + column] = sum;
}
