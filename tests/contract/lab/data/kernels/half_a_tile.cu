// A block of 16×8 threads computes 16×16 elements, which only its loads tell, with padded tiles; a function names the first row.
enum { T = 8 };
#define SIDE (2 * T)
__device__ int first_row() { return blockIdx.y * SIDE; }
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    __shared__ float a_part[SIDE][SIDE + 1], b_part[SIDE][SIDE];
    int x = threadIdx.x, column = blockIdx.x * SIDE + x;
    float sums[2] = {};
    for (int k = 0; k < l; k += SIDE) {
        for (int y = threadIdx.y; y < SIDE; y += SIDE / 2) {
            a_part[y][x] = first_row() + y < n && k + x < l ? a[(first_row() + y) * l + k + x] : 0;
            b_part[y][x] = k + y < l && column < m ? b[(k + y) * m + column] : 0;
        }
        __syncthreads();
        for (int e = 0; e < SIDE; ++e)
            for (int i = 0; i < 2; ++i) sums[i] += a_part[threadIdx.y + i * SIDE / 2][e] * b_part[e][x];
        __syncthreads();
    }
    for (int i = 0, row = first_row() + threadIdx.y; i < 2; ++i, row += SIDE / 2)
        if (row < n && column < m) c[row * m + column] = sums[i];
}
