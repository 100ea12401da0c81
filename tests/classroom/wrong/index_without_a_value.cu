// expect: out of bounds|elements are wrong|crashed
__global__ void k(float* A, float* B, float* C, int n)
{
    int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= n || c >= n) return;
    float s = 0;
    for (int k; k < n; ++k) s += A[r * n + k] * B[k * n + c];
    C[r * n + c] = s;
}
