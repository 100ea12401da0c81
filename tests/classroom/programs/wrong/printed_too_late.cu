// expect: note: what kernels printed last was not shown
// expect: exit status 1
#include <stdio.h>

__global__ void greet() { printf("hello from thread %d\n", threadIdx.x); }

int main()
{
    greet<<<1, 4>>>();
    return 1;
}
