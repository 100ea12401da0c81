// expect: first CUDA call that failed: cudaMalloc in line 9: out of memory \(cudaErrorMemoryAllocation\); the program does not look
// expect: illegal address: line 4 writes through a null pointer

__global__ void set(double* x) { x[threadIdx.x] = 1; }

int main()
{
    double* d_x;
    cudaMalloc(&d_x, 8000000000 * sizeof(double));
    set<<<1, 4>>>(d_x);
    cudaDeviceSynchronize();
}
