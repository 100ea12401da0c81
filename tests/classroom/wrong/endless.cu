// expect: the kernel endless had not ended after 1 s, .* it was in line 7 \(block \(0, 0\), thread \(0, 0\)\): an endless loop
__global__ void endless(float* A, float* B, float* C, int n)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || column >= n) return;
    float sum = 0;
    for (int k = 0; k < n;) sum += A[row * n + k] * B[k * n + column];
    C[row * n + column] = sum;
}
