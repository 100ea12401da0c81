// Each warp, of threads with the same y, computes a row of the lower triangle.
__global__ void triangle(const float* A, const float* B, float* C, int n)
{
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    for (int column = threadIdx.x; row < n && column <= row; column += 32) {
        float sum = 0;
        for (int k = column; k <= row; ++k) sum += A[row * n + k] * B[k * n + column];
        C[row * n + column] = sum;
    }
}
