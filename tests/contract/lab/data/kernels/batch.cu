// A batch of products.
__global__ void batch(const float* A, const float* B, float* C, int count, int M, int N, int K)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.z;
    if (b >= count || row >= M || column >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[(b * M + row) * K + k] * B[(b * K + k) * N + column];
    C[(b * M + row) * N + column] = sum;
}
