// expect: out of bounds: line 7 reads A\[\d\d+\]\[0\], and A is 32×32 \(block \(0, 0\), thread \(0, 0\)\)
__global__ void k(float* A, float* B, float* C, int n)
{
    int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= n || c >= n) return;
    float s = 0;
    for (int k = 0; k < n; ++k) s += A[(r * n + k) * 100000] * B[k * n + c];
    C[r * n + c] = s;
}
