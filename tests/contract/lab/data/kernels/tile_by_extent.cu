// The launch follows from the extents of the tiles, one of which is padded: no name says it.
enum { T = 4 };
#define SIDE (2 * T)
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    __shared__ float a_part[SIDE][SIDE + 1], b_part[SIDE][SIDE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * SIDE + y, column = blockIdx.x * SIDE + x;
    float sum = 0;
    for (int k = 0; k < l; k += SIDE) {
        a_part[y][x] = row < n && k + x < l ? a[row * l + k + x] : 0;
        b_part[y][x] = k + y < l && column < m ? b[(k + y) * m + column] : 0;
        __syncthreads();
        for (int e = 0; e < SIDE; ++e) sum += a_part[y][e] * b_part[e][x];
        __syncthreads();
    }
    if (row < n && column < m) c[row * m + column] = sum;
}
