// block: 64
// Eight threads sum up an element; the sizes are named by what they measure, and the type of the elements has another name.
typedef float real;
__global__ void multiply(const real* a, const real* b, real* c, int height, int inner, int width)
{
    int element = (blockIdx.x * blockDim.x + threadIdx.x) / 8, part = threadIdx.x % 8;
    real sum = 0;
    for (int k = part; element < height * width && k < inner; k += 8) sum += a[element / width * inner + k] * b[k * width + element % width];
    for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (element < height * width && part == 0) c[element] = sum;
}
