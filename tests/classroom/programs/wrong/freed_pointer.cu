// expect: illegal address: line 4 writes d_x\[0\] after cudaFree \(set, launched in line 11: block \(0, 0\), thread \(0, 0\)\)
// expect: cudaDeviceSynchronize in line 12, the first call that waits for the kernel: an illegal memory access was encountered \(cudaErrorIllegalAddress\); the program does not look

__global__ void set(int* x) { x[threadIdx.x] = 1; }

int main(void)
{
    int* d_x;
    cudaMalloc(&d_x, 4 * sizeof(int));
    cudaFree(d_x);
    set<<<1, 4>>>(d_x);
    cudaDeviceSynchronize();
}
