// Threads are numbered along C, as BLAS calls the sizes: C is M×N, and K is summed over.
__global__ void linear(int M, int N, int K, float* A, float* B, float* C)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < M * N; i += gridDim.x * blockDim.x) {
        float sum = 0;
        for (int k = 0; k < K; ++k) sum += A[i / N * K + k] * B[k * N + i % N];
        C[i] = sum;
    }
}
