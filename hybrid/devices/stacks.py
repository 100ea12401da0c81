# SPDX-License-Identifier: MIT
"""Products of stacks of matrices in host memory: by BLAS on the CPU, or by cuBLAS's batched products on a GPU."""

from __future__ import annotations

import numpy as np

from hybrid.core.spans import Span, even_pieces, pieces
from hybrid.core.text import readable
from hybrid.devices.cuda_gpus import Gpu, gpu_context, use_context_of
from hybrid.errors import DoesNotFit
from hybrid.host.threads import blas_all, limited_threads, on_threads

_PARTS_A_THREAD = 4  # so that a thread which is late takes fewer


def multiply_on_cpu(a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int) -> None:
    """c[i] = a[i] · b[i] for all i; `a`, or `b`, may hold one matrix for all. Transposed views are multiplied as they lie.

    Each thread takes whole matrices. Where there are fewer of these than threads, they divide each product.
    """
    count = len(c)
    if count < threads:
        with limited_threads(threads):
            blas_all((a[index % len(a)], b[index % len(b)], c[index]) for index in range(count))
        return

    def multiply(part: Span) -> None:
        np.matmul(some_matrices(a, part), some_matrices(b, part), out=c[part.slice])

    with limited_threads(1):
        for _ in on_threads(threads, multiply, even_pieces(Span(0, count), -(-count // (_PARTS_A_THREAD * threads)))):
            pass


def multiply_on_gpu(gpu: Gpu, a: np.ndarray, b: np.ndarray, c: np.ndarray, most_bytes: int) -> None:
    """As `multiply_on_cpu`, for as many products at a time as have room. `most_bytes`: of the GPU's memory that may be used; 0:
    all that is free."""
    import cupy

    use_context_of(gpu)
    with gpu_context(gpu.index):
        pool = cupy.get_default_memory_pool()
        free = cupy.cuda.runtime.memGetInfo()[0] + pool.free_bytes()
        room = min(most_bytes or free, free - free // 8)
        shared = sum(each.nbytes for each in (a, b) if len(each) == 1)
        each = sum(matrix[0].nbytes for matrix in (a, b, c) if len(matrix) > 1 or matrix is c)
        at_once = (room - shared) // max(1, each)
        if at_once < 1:
            raise DoesNotFit(
                f"a product of the stack takes {readable(shared + each)} of {gpu.name} {gpu.uuid}, "
                f"where {readable(room)} may be used",
                code="gpu-memory",
            )
        first, second = (cupy.asarray(matrix) if len(matrix) == 1 else None for matrix in (a, b))
        for part in pieces(Span(0, len(c)), at_once):
            on_gpu = [
                cupy.asarray(some_matrices(host, part)) if there is None else there for host, there in ((a, first), (b, second))
            ]
            cupy.matmul(*on_gpu).get(out=c[part.slice])


def some_matrices(stack: np.ndarray, part: Span) -> np.ndarray:
    """An operand's matrices for the products `part`: the only one, or one for each."""
    return stack if len(stack) == 1 else stack[part.slice]
