// kernel: tiled<float, 8>
// block: 8, 8
// A template, and another kernel beside it.
template <typename T, int SIDE>
__global__ void tiled(const T* a, const T* b, T* c, int n, int l, int m)
{
    int i = blockIdx.y * SIDE + threadIdx.y, j = blockIdx.x * SIDE + threadIdx.x;
    T sum = 0;
    for (int k = 0; i < n && j < m && k < l; ++k) sum += a[i * l + k] * b[k * m + j];
    if (i < n && j < m) c[i * m + j] = sum;
}

__global__ void scale(float* c, float by) { c[threadIdx.x] *= by; }
