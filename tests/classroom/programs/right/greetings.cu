// What kernels print comes where the host waits for them.
// stdout: before\nafter the launch\n(block [01], thread [0-2]: hello\n){6}after waiting
#include <stdio.h>

__global__ void greet(const char* unused) { printf("block %d, thread %d: hello\n", blockIdx.x, threadIdx.x); }

int main(void)
{
    printf("before\n");
    greet<<<2, 3>>>(NULL);
    printf("after the launch\n");
    cudaDeviceSynchronize();
    printf("after waiting\n");
}
