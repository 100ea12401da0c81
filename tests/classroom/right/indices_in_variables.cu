// Indices of A and C are computed before: A is no vector.
__global__ void indexed(float* A, float* B, float* C, int n)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || column >= n) return;
    int at = row * n, to = at + column;
    float sum = 0;
    for (int k = 0; k < n; ++k, ++at) sum += A[at] * B[k * n + column];
    C[to] = sum;
}
