// block: 8,8,4
// Threads in z sum up slices of an element's products.
using number = signed char;
__global__ void multiply(const number* a, const number* b, int* c, int rows, int common, int cols)
{
    __shared__ int sums[8][8];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 8 + y, column = blockIdx.x * 8 + x, sum = 0;
    if (threadIdx.z == 0) sums[y][x] = 0;
    __syncthreads();
    for (int k = threadIdx.z; row < rows && column < cols && k < common; k += blockDim.z) sum += a[row * common + k] * b[k * cols + column];
    atomicAdd(&sums[y][x], sum);
    __syncthreads();
    if (row < rows && column < cols && threadIdx.z == 0) c[row * cols + column] = sums[y][x];
}
