// stdout: ^31 0$
#include <stdio.h>
extern __shared__ int turned[];
__device__ int of_other_end() { return turned[31 - threadIdx.x]; }
__global__ void turn(int* x)
{
    turned[threadIdx.x] = threadIdx.x;
    __syncthreads();
    x[threadIdx.x] = of_other_end();
}
int main()
{
    int *d_x, x[32];
    cudaMalloc(&d_x, sizeof(x));
    turn<<<1, 32, sizeof(x)>>>(d_x);
    cudaMemcpy(x, d_x, sizeof(x), cudaMemcpyDeviceToHost);
    printf("%d %d\n", x[0], x[31]);
    cudaFree(d_x);
}
