// Other names of whole numbers, an aligned struct, and a kernel that the comment chooses.
typedef unsigned int u32;
using index_t = long long;
#define SIZE unsigned long
struct __align__(16) Mat {
    u32 width;
    SIZE height;
    float* elements;
};
// lab: kernel(multiply) block(16, 8)
__global__ void fill(float* x, u32 n) { x[n] = 1; }
__global__ void multiply(Mat A, Mat B, Mat C)
{
    index_t row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= C.height || column >= C.width) return;
    float sum = 0;
    for (index_t k = 0; k < A.width; ++k) sum += A.elements[row * A.width + k] * B.elements[k * B.width + column];
    C.elements[row * C.width + column] = sum;
}
