// A struct that knows how to find its elements.
class Rectangle
{
public:
    size_t rows, cols;
    double* values;
    __device__ double& at(int row, int column) const { return values[row * cols + column]; }
    __device__ bool has(int row, int column) const
    {
        if (row < 0) return false;
        return row < rows && column < cols;
    }
};
__global__ void multiply(const Rectangle left, const Rectangle right, Rectangle product)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (!product.has(row, column)) return;
    double sum = 0;
    for (int k = 0; k < left.cols; ++k) sum += left.at(row, k) * right.at(k, column);
    product.at(row, column) = sum;
}
