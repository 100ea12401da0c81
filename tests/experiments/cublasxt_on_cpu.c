// SPDX-License-Identifier: MIT
// cuBLASXt's functions, as cublasXt.h declares them, on a CPU with two "GPUs": slow, right, and it counts.

#include <stddef.h>
#include <stdlib.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7 };

typedef struct {
    int devices, block, registers;
} Handle;

int products[2];  // with the pinning of memory disabled and enabled
int open_handles, last_block;

int cublasXtCreate(Handle** handle)
{
    *handle = calloc(1, sizeof(Handle));
    ++open_handles;
    return SUCCESS;
}

int cublasXtDestroy(Handle* handle)
{
    free(handle);
    --open_handles;
    return SUCCESS;
}

int cublasXtDeviceSelect(Handle* handle, int count, int* devices)
{
    for (int i = 0; i < count; ++i)
        if (devices[i] != i || i > 1) return INVALID_VALUE;
    handle->devices = count;
    return SUCCESS;
}

int cublasXtSetBlockDim(Handle* handle, int block)
{
    if (block <= 0) return INVALID_VALUE;
    handle->block = last_block = block;
    return SUCCESS;
}

int cublasXtSetPinningMemMode(Handle* handle, int mode)
{
    if (mode != 0 && mode != 1) return INVALID_VALUE;
    handle->registers = mode;
    return SUCCESS;
}

// Column-major, with the leading dimensions given: element (i, j) is at i + j * ld.
int cublasXtDgemm(Handle* handle, int transposed_a, int transposed_b, size_t m, size_t n, size_t k, const double* alpha,
                  const double* a, size_t lda, const double* b, size_t ldb, const double* beta, double* c, size_t ldc)
{
    if (!handle->devices || !handle->block) return NOT_INITIALIZED;
    if (transposed_a || transposed_b || lda < m || ldb < k || ldc < m) return INVALID_VALUE;
    for (size_t j = 0; j < n; ++j)
        for (size_t i = 0; i < m; ++i) {
            double sum = 0;
            for (size_t p = 0; p < k; ++p) sum += a[i + p * lda] * b[p + j * ldb];
            c[i + j * ldc] = *alpha * sum + (*beta == 0 ? 0 : *beta * c[i + j * ldc]);
        }
    ++products[handle->registers];
    return SUCCESS;
}
