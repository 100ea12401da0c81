// expect: line 7 writes through a null pointer
__global__ void k(float* A, float* B, float* C, int n)
{
    int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= n || c >= n) return;
    double* p = nullptr;
    p[r] = 1;
    C[r * n + c] = 0;
}
