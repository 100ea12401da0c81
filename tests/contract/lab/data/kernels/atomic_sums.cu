// Sums are built up in C atomically, from an exchanged 0 on.
__global__ void atomic_sums(const float* A, const float* B, float* C, int n, int l, int m)
{
    int r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x;
    if (r >= n || c >= m) return;
    atomicExch(&C[r * m + c], 0.f);
    for (int k = 0; k < l; k++) atomicAdd(C + r * m + c, A[r * l + k] * B[k * m + c]);
}
