// Rows whose pitch is in bytes, pointers into them, a template without arguments, and parts of sums that are added to C.
template <typename T>
__global__ void pitched(const T* A, size_t pa, const T* B, size_t pitch_b, T* C, size_t pc, int n)
{
    int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || j >= n) return;
    const T *a = (const T*)((const char*)A + i * pa), *b = B + j;
    T* c = (T*)((char*)C + i * pc);
    for (int k = 0; k < n; ++k) atomicAdd(c + j, a[k] * *(const T*)((const char*)b + k * pitch_b));
}
