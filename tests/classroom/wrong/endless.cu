// expect: it had not ended after 1 s
__global__ void endless(float* A, float* B, float* C, int n)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || column >= n) return;
    float sum = 0;
    for (int k = 0; k < n;) sum += A[row * n + k] * B[k * n + column];
    C[row * n + column] = sum;
}
