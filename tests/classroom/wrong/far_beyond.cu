// expect: line 7 uses memory that is no matrix's
__global__ void k(float* A, float* B, float* C, int n)
{
    int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= n || c >= n) return;
    float s = 0;
    for (int k = 0; k < n; ++k) s += A[(r * n + k) * 100000] * B[k * n + c];
    C[r * n + c] = s;
}
