// Faults of host code: a case each, and "right", in which it uses memory in all ways that are right.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <new>
#include <string>
#include <vector>

__device__ int counter;
struct Padded { double x; int n; };
__global__ void set(float* x) { x[threadIdx.x] = 1 + counter; }
__global__ void one_more(Padded* p)
{
    Padded own = p[threadIdx.x];  //! copied without a value: uninitialised
    ++own.n, p[threadIdx.x] = own;
}

static void fill(float* x, int n)
{
    for (int i = 0; i < n; ++i) x[i] = i;
}
__attribute__((noinline)) static float last_of(float first, int n)
{
    float few[4];
    few[0] = first;
    fill(few + 1, n);
    return few[3];
}  //! beyond a local array: out-of-bounds
static int sign(int x)  //! no return: undefined
{
    if (x < 0) return -1;
}

static void right(int n)
{
    float* many = (float*)calloc(n, sizeof(float));
    many = (float*)realloc(many, 2 * n * sizeof(float));
    fill(many, 2 * n);
    void *page, *aligned = aligned_alloc(64, 128);
    posix_memalign(&page, 4096, 100);
    memset(page, 1, 100), memcpy(aligned, page, 100), memmove((char*)page + 1, page, 99);
    char *line = (char*)malloc(2), *copied = strdup("what the library gives");
    size_t room = 2;
    FILE* file = fopen("/proc/self/status", "r");
    getline(&line, &room, file), fclose(file);
    std::vector<std::string> names(3, std::string(100, 'a'));
    for (int i = 0; i < 300; ++i) names.push_back(copied + i % 9), names[i] += names.back();
    int seed = n;
    for (int i = 0; i < n; ++i) seed = seed * 1103515245 + 12345;  // overflows, on purpose
#pragma omp parallel for
    for (int i = 0; i < 2 * n; ++i) {
        std::vector<int> own(i + 1, i);
        many[i] += own[i] + (seed & 1);
    }
    for (int i = 0; i < 100000; ++i) free(malloc(1 << i % 16));
    for (int i = 0; i < 3; ++i) {  // of 4 GiB
        char* large = new (std::nothrow) char[1500 << 20];
        large[n] = i, delete[] large;
    }
    printf("%s%zu names\n", line, names.size());
    free(many), free(aligned), free(page), free(line), free(copied);
}

static void use_of(int used)  // of 20 elements
{
    Padded *part = new Padded[20], *d;
    for (int i = 0; i < used; ++i) part[i].x = part[i].n = i;
    cudaMalloc(&d, 20 * sizeof(Padded));
    cudaMemcpy(d, part, 20 * sizeof(Padded), cudaMemcpyHostToDevice);
    one_more<<<1, 10>>>(d);
    cudaMemcpy(part, d, 20 * sizeof(Padded), cudaMemcpyDeviceToHost);
    cudaFree(d), delete[] part;
}

int main(int argc, char** argv)
{
    float *x, *y = (float*)malloc(100 * sizeof(float)), few[4];
    int n = 46341;
    cudaMalloc(&x, 400);
    set<<<1, 100>>>(x);
    for (int i = 1; i < argc; ++i) {
        auto is = [&](const char* name) { return !strcmp(argv[i], name); };
        if (is("right")) {
            right(1000), use_of(10);
        } else if (is("one too many")) {
            for (int k = 0; k <= 100; ++k)
                y[k] = k;  //! one too many: out-of-bounds
        } else if (is("before the first")) {
            for (int k = 99; k >= 0; --k)
                y[k] += y[k - 1];  //! before the first: out-of-bounds
        } else if (is("beyond a vector")) {
            std::vector<double> v(argc);
            v[argc] = 1;  //! beyond a vector: out-of-bounds
        } else if (is("used after free")) {
            float* z = new float[n];
            delete[] z;
            printf("%g\n", z[argc]);  //! used after free: illegal-address
        } else if (is("freed twice by the host")) {
            char* z = (char*)calloc(argc, 1);
            y[0] += z[argc - 1], free(z);
            free(z);  //! freed twice by the host: illegal-address
        } else if (is("freed from the second on")) {
            free(y + 1);  //! freed from the second on: illegal-address
        } else if (is("set too much")) {
            memset(y, argc, 100 * sizeof(double));  //! set too much: out-of-bounds
        } else if (is("copied to too little")) {
            float* z = (float*)malloc(100);
            cudaMemcpy(z, x, 400, cudaMemcpyDeviceToHost);  //! copied to too little: out-of-bounds
        } else if (is("beyond pinned memory")) {
            double* z;
            cudaMallocHost((void**)&z, 10 * sizeof(double));
            z[10] = 1;  //! beyond pinned memory: out-of-bounds
            cudaFreeHost(z);
        } else if (is("index overflows")) {
            printf("%g\n", y[(n * n >> 31) - 1]);  //! index overflows: out-of-bounds //! index overflows: undefined
        } else if (is("beyond an array")) {
            for (int k = 0; k <= 4; ++k)
                few[k] = k;  //! beyond an array: out-of-bounds
            y[0] = few[argc & 3];
        } else if (is("beyond a local array")) {
            printf("%g\n", last_of(0, 3 + 8 * argc));
        } else if (is("copied without a value")) {
            use_of(9);
        } else if (is("read without a value")) {
            double* z = new double[argc];
            y[0] += z[argc - 1];  //! read without a value: uninitialised
            free(z);  //! read without a value: illegal-address
        } else if (is("variable of the device")) {
            counter = argc;  //! variable of the device: illegal-address
        } else if (is("no return")) {
            printf("%d\n", sign(argc));
        }
    }
    cudaMemcpy(y, x, 400, cudaMemcpyDeviceToHost);
    cudaFree(x), free(y);
}
