// C = A^T * BT^T, where A is l x n
__global__ void multiply(const float* A, const float* BT, float* C, int n, int l, int m)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || column >= m) return;
    float sum = 0;
    for (int k = 0; k < l; ++k) sum += A[k * n + row] * BT[column * l + k];
    C[row * m + column] = sum;
}
