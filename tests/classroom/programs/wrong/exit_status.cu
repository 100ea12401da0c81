// expect: exit_status.cu: exit status 3, 1 kernel launch
#include <stdlib.h>

__global__ void nothing() {}

int main()
{
    nothing<<<1, 1>>>();
    exit(3);
}
