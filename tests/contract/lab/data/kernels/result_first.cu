// PMPP, chapter 3, exercise 2: the result comes first, and one size is that of the matrix.
__global__ void matrix_times_vector(float* out, const float* matrix, const float* vector, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int j = 0; j < n; ++j) sum += matrix[i * n + j] * vector[j];
    out[i] = sum;
}
