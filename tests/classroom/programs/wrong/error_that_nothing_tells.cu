// expect: the launch of set in line 9 failed, and no call waits for it
// expect: illegal address: line 4 writes through a null pointer

__global__ void set(int* x) { x[threadIdx.x] = 1; }

int main()
{
    int* x = nullptr;
    set<<<1, 4>>>(x);
}
