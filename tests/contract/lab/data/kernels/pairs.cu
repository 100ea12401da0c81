// Each thread computes two columns with vectors; m is a multiple of 2.
// lab: grid((m / 2 + 15) / 16, (n + 15) / 16) block(16, 16)
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    int row = blockIdx.y * 16 + threadIdx.y, pair = blockIdx.x * 16 + threadIdx.x;
    if (row >= n || pair >= m / 2) return;
    float2 sum = make_float2(0, 0);
    for (int k = 0; k < l; ++k) {
        float2 two = reinterpret_cast<const float2*>(b)[k * (m / 2) + pair];
        sum.x += a[row * l + k] * two.x;
        sum.y += a[row * l + k] * two.y;
    }
    reinterpret_cast<float2*>(c)[row * (m / 2) + pair] = sum;
}
