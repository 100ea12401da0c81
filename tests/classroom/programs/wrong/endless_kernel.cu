// expect: the kernel wait had not ended after 1 s, which --stall sets; it was in line 4 \(wait, launched in line 11: block \(0, 0\), thread \(0, 0\)\): an endless loop
__global__ void wait(volatile int* flag)
{
    while (*flag == 0) {}
}

int main()
{
    int* d_flag;
    cudaMalloc(&d_flag, sizeof(int)), cudaMemset(d_flag, 0, sizeof(int));
    wait<<<1, 1>>>(d_flag);
    cudaDeviceSynchronize();
}
