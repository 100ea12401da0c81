// expect: data race: line 11 reads managed memory x\[0\] on the host while the kernel may still run: no cudaDeviceSynchronize\(\)
#include <stdio.h>

__global__ void set(int* x) { x[threadIdx.x] = 1; }

int main(void)
{
    int* x;
    cudaMallocManaged(&x, 4 * sizeof(int));
    set<<<1, 4>>>(x);
    printf("%d\n", x[0]);
    cudaFree(x);
}
