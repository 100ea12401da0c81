// The tiles of both factors are one array, whose last extents tell the block.
#define T 8
__global__ void multiply(const float* a, const float* b, float* c, unsigned short n, long int l, int m)
{
    __shared__ float tiles[2][T][T + 1];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * T + y, column = blockIdx.x * T + x;
    float sum = 0;
    for (int first = 0; first < l; first += T) {
        tiles[0][y][x] = row < n && first + x < l ? a[row * l + first + x] : 0;
        tiles[1][y][x] = first + y < l && column < m ? b[(first + y) * m + column] : 0;
        __syncthreads();
        for (int k = 0; k < T; ++k) sum += tiles[0][y][k] * tiles[1][k][x];
        __syncthreads();
    }
    if (row < n && column < m) c[row * m + column] = sum;
}
