# SPDX-License-Identifier: MIT
"""Each rank multiplies NumPy arrays in several ways, and tells of which GPUs it has a context then, and which is current.

contexts_of_ranks.py C, or contexts_of_ranks.py NumPy: what makes the checksums of copies.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from mpi4py import MPI

import hybrid
from hybrid.verification import row_summing

if sys.argv[1] == "NumPy":
    row_summing.load = lambda: None
comm = MPI.COMM_WORLD
a, b = (np.random.default_rng(each).random((800, 800)) for each in (1, 2)) if comm.rank == 0 else (None, None)
for flags in ({}, {"check": "host"}, {"check": False}, {"transport": "nccl"}, {"precision": "fast"}, {"gpu_memory": "24M"}):
    c = hybrid.multiply(a, b, comm=comm, device="cuda", **flags)
    if comm.rank == 0:
        np.testing.assert_allclose(c, a @ b, rtol=1e-9)
block = hybrid.scatter(a, comm=comm)
hybrid.gather(hybrid.multiply(block, block, device="cuda"), comm=comm)
shared = [hybrid.empty((800, 800), comm=comm) for _ in range(3)]
if comm.rank == 0:
    shared[0][:], shared[1][:] = a, b
hybrid.multiply(shared[0], shared[1], out=shared[2], comm=comm, device="cuda")
del c, shared  # page-locked memory is released
hybrid.multiply(a, b, comm=comm, device="cpu")  # the GPU is given back
other = comm.Dup()
hybrid.multiply(a, b, comm=other, device="cuda")
other.Free()  # and here once more

driver, active, current = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
driver.cuCtxGetCurrent(ctypes.byref(current))


def has_context(index: int) -> bool:
    """Whether this process has a primary context of the GPU."""
    device = ctypes.c_int()
    assert driver.cuDeviceGet(ctypes.byref(device), index) == 0
    assert driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(ctypes.c_uint()), ctypes.byref(active)) == 0
    return bool(active.value)


gpus = [index for index in range(2) if has_context(index)]
print(f"rank {comm.rank}: contexts of GPUs {gpus}, current {current.value or 0}\n", end="")
