// expect: line 5 uses sum, which has no value yet
__global__ void add(float* x)
{
    float sum;
    sum += x[0];
    x[0] = sum;
}

int main()
{
    float* d_x;
    cudaMalloc(&d_x, sizeof(float)), cudaMemset(d_x, 0, sizeof(float));
    add<<<1, 1>>>(d_x);
    cudaFree(d_x);
}
