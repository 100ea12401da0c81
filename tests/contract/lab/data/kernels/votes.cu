// Votes of warps and blocks, bits, intrinsics, a clock and constant memory, which leave the product as it is.
// lab: block(32, 4) grid((m + 31) / 32, (n + 3) / 4)
#include <assert.h>
__constant__ float one = 1, table[2] = {0, 1};
__device__ int calls = 7;
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    int row = blockIdx.y * 4 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x, lane = threadIdx.x;
    long long began = clock64();
    assert(__syncthreads_count(lane < 3) == 12 && __syncthreads_or(lane == 5) && !__syncthreads_and(lane == 5));
    assert(__ballot_sync(0xffffffffu, lane & 1) == 0xaaaaaaaau && __popc(__ballot_sync(0xffffffffu, lane < 5)) == 5);
    assert(__any_sync(0xffffffffu, lane == 9) && !__all_sync(0xffffffffu, lane == 9) && __all_sync(0xffffffffu, 1));
    assert(__reduce_add_sync(0xffffffffu, lane) == 496 && __reduce_max_sync(0xffffffffu, static_cast<unsigned>(lane)) == 31);
    assert(__match_any_sync(0xffffffffu, lane / 16) == (lane < 16 ? 0xffffu : 0xffff0000u));
    if (lane < 10) {
        unsigned together = __activemask();
        assert(together == 0x3ff && __ffs(together) == 1 && __clz(together) == 22);
        assert(__shfl_sync(together, lane, 9) == 9);
    }
    if (row >= n || column >= m) return;
    float sum = 0;
    for (int k = 0; k < l; ++k) sum = __fmaf_rn(a[row * l + k], b[k * m + column], sum);
    c[row * m + column] = clock64() < began ? 0 : sum * one * table[calls / 7];
}
