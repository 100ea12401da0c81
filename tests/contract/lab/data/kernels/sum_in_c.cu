// Each thread sums in its element of C itself, and prints.
#include <assert.h>
#include <stdio.h>
typedef float real;
#define T 16
#define rows 5

__global__ void sum_in_c(real* C, const real* A, const real* B, unsigned int n)
{
    int r = blockIdx.y * blockDim.y + threadIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (r == 0 && c == 0) printf("{\"outcome\": %d}", rows);
    if (r >= n || c >= n) return;
    C[r * n + c] = 0;
    for (int k = 0; k < n; ++k) C[r * n + c] += A[r * n + k] * B[k * n + c];
}
