// expect: elements never written
// Only as many columns as one block has threads.
__global__ void one_block_wide(float* A, float* B, float* C, int n)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = threadIdx.x;
    if (row >= n || column >= n || blockIdx.x > 0) return;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += A[row * n + k] * B[k * n + column];
    C[row * n + column] = sum;
}
