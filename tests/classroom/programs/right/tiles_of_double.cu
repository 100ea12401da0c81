// Any sizes, with the time by events; main() without its type, as one of the documents has it.
// arguments: 9 11 5
// stdout: multiplied in [0-9.]+ ms, largest error 0
// note: cudaEventElapsedTime
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TILE 4
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define HANDLE_ERROR(call) check((call), __FILE__, __LINE__)

static void check(cudaError_t error, const char* file, int line)
{
    if (error == cudaSuccess) return;
    printf("%s in %s at line %d\n", cudaGetErrorString(error), file, line);
    exit(EXIT_FAILURE);
}

static cudaEvent_t start, stop;
int launches;

__global__ void multiply(int n, int l, int m, double* a, double* b, double* c)
{
    int y = threadIdx.y, x = threadIdx.x, i = blockDim.y * blockIdx.y + y, j = blockDim.x * blockIdx.x + x;
    double result = 0.0;
    for (int s = 0; s < l; s += TILE) {
        __shared__ double a_s[TILE][TILE];
        __shared__ double b_s[TILE][TILE];
        if (i < n && s + x < l) a_s[y][x] = a[i * l + s + x];
        if (s + y < l && j < m) b_s[y][x] = b[(s + y) * m + j];
        __syncthreads();
        const int k_stop = MIN(TILE, l - s);
        for (int k = 0; k < k_stop; k++)
            if (i < n && j < m) result += a_s[y][k] * b_s[k][x];
        __syncthreads();
    }
    if (i < n && j < m) c[i * m + j] = result;
}

main(int argc, char* argv[])
{
    int n = atoi(argv[1]), l = atoi(argv[2]), m = atoi(argv[3]);
    srand(time(NULL));
    double *a = (double*)malloc(n * l * sizeof(double)), *b = (double*)malloc(l * m * sizeof(double));
    double *c = (double*)malloc(n * m * sizeof(double)), *d_a, *d_b, *d_c;
    for (int i = 0; i < n * l; i++) a[i] = rand() % 100;
    for (int i = 0; i < l * m; i++) b[i] = rand() % 100;
    HANDLE_ERROR(cudaEventCreate(&start));
    HANDLE_ERROR(cudaEventCreate(&stop));
    HANDLE_ERROR(cudaEventRecord(start, 0));
    HANDLE_ERROR(cudaMalloc((void**)&d_a, n * l * sizeof(double)));
    HANDLE_ERROR(cudaMalloc((void**)&d_b, l * m * sizeof(double)));
    HANDLE_ERROR(cudaMalloc((void**)&d_c, n * m * sizeof(double)));
    HANDLE_ERROR(cudaMemcpy(d_a, a, n * l * sizeof(double), cudaMemcpyHostToDevice));
    HANDLE_ERROR(cudaMemcpy(d_b, b, l * m * sizeof(double), cudaMemcpyHostToDevice));
    dim3 block(TILE, TILE);
    dim3 grid((m + TILE - 1) / TILE, (n + TILE - 1) / TILE);
    multiply<<<grid, block>>>(n, l, m, d_a, d_b, d_c);
    ++launches;
    HANDLE_ERROR(cudaGetLastError());
    HANDLE_ERROR(cudaMemcpy(c, d_c, n * m * sizeof(double), cudaMemcpyDeviceToHost));
    HANDLE_ERROR(cudaEventRecord(stop, 0));
    HANDLE_ERROR(cudaEventSynchronize(stop));
    float elapsed;
    HANDLE_ERROR(cudaEventElapsedTime(&elapsed, start, stop));
    double worst = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) {
            double sum = 0;
            for (int k = 0; k < l; k++) sum += a[i * l + k] * b[k * m + j];
            worst = fmax(worst, fabs(sum - c[i * m + j]));
        }
    printf("multiplied in %3.1f ms, largest error %g\n", elapsed, worst);
    HANDLE_ERROR(cudaFree(d_a));
    HANDLE_ERROR(cudaFree(d_b));
    HANDLE_ERROR(cudaFree(d_c));
    HANDLE_ERROR(cudaEventDestroy(start));
    HANDLE_ERROR(cudaEventDestroy(stop));
    free(a);
    free(b);
    free(c);
    return launches != 1;
}
