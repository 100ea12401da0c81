// kernel: flat_tiles<double, 8>
// Shared arrays of one dimension, whose width is the template's.
template <typename T, int TS>
__global__ void flat_tiles(int m, int n, int k, const T *a, const T *b, T *c)
{
    __shared__ T as[TS * TS], bs[TS * TS];
    auto at = [](T *s, int y, int x) -> T & { return s[y * TS + x]; };
    int x = threadIdx.x, y = threadIdx.y, i = blockIdx.y * TS + y, j = blockIdx.x * TS + x;
    T sum{};
    for (int p = 0; p < k; p += TS) {
        at(as, y, x) = i < m && p + x < k ? a[i * k + p + x] : T(0);
        at(bs, y, x) = p + y < k && j < n ? b[(p + y) * n + j] : T(0);
        __syncthreads();
        for (int q = 0; q < TS; ++q) sum += at(as, y, q) * at(bs, q, x);
        __syncthreads();
    }
    if (i < m && j < n) c[i * n + j] = sum;
}
