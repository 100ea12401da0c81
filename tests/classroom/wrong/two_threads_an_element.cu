// expect: elements? of C written by several threads
__global__ void k(float* A, float* B, float* C, int n)
{
    int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= n || c >= n) return;
    C[0] = r;
    float s = 0;
    for (int k = 0; k < n; ++k) s += A[r * n + k] * B[k * n + c];
    if (r + c) C[r * n + c] = s;
}
