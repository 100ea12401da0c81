// expect: first CUDA call that failed: cudaFree in line 12: invalid argument .*does not look
__global__ void set(int* x) { x[threadIdx.x] = 1; }

int main()
{
    int *d_x, *d_y;
    cudaMalloc(&d_x, 16);
    cudaMalloc(&d_y, 16);
    set<<<1, 4>>>(d_x);
    set<<<1, 4>>>(d_y);
    cudaFree(d_x);
    cudaFree(d_x);
    cudaFree(d_y);
}
