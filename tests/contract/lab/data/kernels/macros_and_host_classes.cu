// Macros for __device__ and __global__, and a class of host code.
// kernel: multiply<double>
#include <vector>
#ifdef __CUDACC__
#define HD __host__ __device__
#else
#define HD
#endif
#define KERNEL __global__ void
template <typename T>
class Buffer
{
public:
    explicit Buffer(size_t n) : size_(n) { cudaMalloc(&pointer_, n * sizeof(T)); }
    ~Buffer() { cudaFree(pointer_); }
    void put(const std::vector<T>& from) { cudaMemcpy(pointer_, from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice); }
    HD T* get() const { return pointer_; }

private:
    T* pointer_ = nullptr;
    size_t size_;
};
HD int at(int row, int column, int width) { return row * width + column; }
template <typename T>
KERNEL multiply(const T* a, const T* b, T* c, int n, int l, int m)
{
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n || column >= m) return;
    T sum(0);
    for (int k = 0; k < l; ++k) sum += a[at(row, k, l)] * b[at(k, column, m)];
    c[at(row, column, m)] = sum;
}
double sum(const std::vector<double>& values)
{
    double all = 0;
    for (double each : values) all += each;
    return all;
}
