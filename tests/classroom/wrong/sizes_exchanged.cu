// expect: elements are wrong|out of bounds
__global__ void exchanged(int n, int l, int m, double* a, double* b, double* c)
{
    int i = blockDim.y * blockIdx.y + threadIdx.y, j = blockDim.x * blockIdx.x + threadIdx.x;
    if (i >= n || j >= m) return;
    double result = 0.0;
    for (int k = 0; k < l; k++) result += a[i * m + k] * b[k * m + j];
    c[i * m + j] = result;
}
