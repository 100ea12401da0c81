// C = A · B with a mistake for each case, of which no access is wrong; main() takes its name, and "" for none.
// clang-format off
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILE 8

__global__ void multiply(const float* A, const float* B, float* C, int n, int l, int m, int begin, int end, float alpha)
{
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    if (row >= n || column >= m) return;
    float sum = 0;
    for (int k = begin; k < end; ++k) sum += A[row * l + k] * B[k * m + column];
    C[row * m + column] = alpha * sum;  //! rounded down: wrong-elements //! first term missing: wrong-elements //! last term only: wrong-elements
}
__global__ void square_of(const float* A, const float* B, float* C, int n)
{
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += A[row * n + k] * A[k * n + column];
    C[row * n + column] = sum;  //! without B: wrong-elements
}
__global__ void exchanged(const float* a, const float* b, float* c, int n)
{
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}
__global__ void two_rows(const int* A, const int* B, int* C, int n)
{
    int row = threadIdx.y, column = threadIdx.x, sum = 0;
    for (int k = 0; k < n; ++k) sum += A[row * n + k] * B[k * n + column];
    C[row * n + column] = row < n - 2 ? sum : sum + 1;  //! edge: wrong-elements
}
__global__ void other(const float* A, const float* B, float* C, int n, char what)
{
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = what == 'm' ? 1e9f : 0;
    for (int k = 0; k < n; ++k) {
        float a = A[row * n + k], b = B[k * n + column];
        sum = what == 'm' ? fminf(sum, a + b) : what == 't' ? sum + a * B[column * n + k] : sum + fabsf(a - b);
    }
    C[row * n + column] = what == 'h' ? A[row * n + column] * B[row * n + column] : sum;
}
__global__ void added_up(const float* A, const float* B, float* C, int n, int l, int m)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, k = blockIdx.y;
    if (i >= n * m) return;
    if (k == 0) C[i] = 0;
    __threadfence();
    atomicAdd(&C[i], A[i / m * l + k] * B[k * m + i % m]);  //! in reverse: order-dependent
}
__global__ void add_to(const float* A, const float* B, float* C, int n, int l, int m)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; i < n * m && k < l; ++k) C[i] += A[i / m * l + k] * B[k * m + i % m];
}

int main(int argc, char** argv)
{
    auto is = [&](const char* name) { return argc > 1 && !strcmp(argv[1], name); };
    bool is_square = is("without B") || is("other") || is("exchanged");
    const int n = 24, l = is_square ? 24 : 30, m = is_square ? 24 : 19;
    float host[30 * 30], *A, *B, *C;
    for (int i = 0; i < 900; ++i) host[i] = rand() % 10 - 4;
    cudaMalloc(&A, n * l * sizeof(float));
    cudaMalloc(&B, l * m * sizeof(float));  //! without B: unused
    cudaMalloc(&C, n * m * sizeof(float));  //! kept: unused //! half back: unused
    cudaMemcpy(A, host, n * l * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(B, host + 7, l * m * sizeof(float), cudaMemcpyHostToDevice);
    dim3 grid((m + TILE - 1) / TILE, (n + TILE - 1) / TILE), block(TILE, TILE);
    if (is("small grid")) cudaMemset(C, 0, n * m * sizeof(float)), grid.x = m / TILE;
    if (is("ones")) cudaMemset(B, 1, l * m * sizeof(float));  //! ones: wrong-elements
    int begin = is("first term missing") ? 1 : is("last term only") ? l - 1 : 0, end = is("rounded down") ? l / TILE * TILE : l;
    if (is("without B")) {
        square_of<<<grid, block>>>(A, B, C, n);
    } else if (is("exchanged")) {
        exchanged<<<grid, block>>>(B, A, C, n);  //! exchanged: wrong-operand
    } else if (is("edge")) {
        int *of[3], ones[64];
        for (int& one : ones) one = rand() % 9;
        for (int*& each : of) cudaMalloc(&each, sizeof(ones));
        for (int i : {0, 1}) cudaMemcpy(of[i], ones, sizeof(ones), cudaMemcpyHostToDevice);
        two_rows<<<1, dim3(8, 8)>>>(of[0], of[1], of[2], 8);
        cudaMemcpy(ones, of[2], sizeof(ones), cudaMemcpyDeviceToHost);
        for (int* each : of) cudaFree(each);
        multiply<<<grid, block>>>(A, B, C, n, l, m, begin, end, 1);
    } else if (is("in reverse")) {  // block 0 clears C, and comes first only in forward order
        cudaMemset(C, 0, n * m * sizeof(float));
        added_up<<<dim3((n * m + 63) / 64, l), 64>>>(A, B, C, n, l, m);
    } else if (is("again")) {
        cudaMemset(C, 0, n * m * sizeof(float));
        for (int i : {0, 1, 2}) add_to<<<(n * m + 63) / 64, 64>>>(A, B, C, n, l, m);  //! again: wrong-terms
    } else if (is("other")) {
        for (char what : {'m', 't', 'd', 'h'}) other<<<grid, block>>>(A, B, C, n, what);
    } else {
        multiply<<<grid, block>>>(A, B, C, n, l, m, begin, end, is("scaled") ? 2.5f : 1);  //! small grid: never-written
    }
    if (!is("kept")) cudaMemcpy(host, C, n * m * sizeof(float) / (is("half back") ? 2 : 1), cudaMemcpyDeviceToHost);
    for (float* each : {A, B, C}) cudaFree(each);
    return 0;
}
