// expect: elements? of C written by several threads
// lab: block(8, 8) grid(m, n)
__global__ void parts(float* A, float* B, float* C, int n, int l, int m)
{
    int k = threadIdx.y * blockDim.x + threadIdx.x, row = blockIdx.y, column = blockIdx.x;
    if (k == 0) C[row * m + column] = 0;
    __syncthreads();
    for (; k < l; k += 64) C[row * m + column] += A[row * l + k] * B[k * m + column];
}
