// Sums of bytes in an int, in tiles.
#include <cstdint>

__global__ void bytes(const int8_t* A, const int8_t* B, int32_t* C, int M, int N, int K)
{
    __shared__ int8_t a[16][16], b[16][16];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    int sum = 0;
    for (int first = 0; first < K; first += 16) {
        a[y][x] = row < M && first + x < K ? A[row * K + first + x] : 0;
        b[y][x] = first + y < K && column < N ? B[(first + y) * N + column] : 0;
        __syncthreads();
        for (int k = 0; k < 16; ++k) sum += a[y][k] * b[k][x];
        __syncthreads();
    }
    if (row < M && column < N) C[row * N + column] = sum;
}
