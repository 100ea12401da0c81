# SPDX-License-Identifier: MIT
"""What no program with MPI, NumPy and a GPU can do without: they are loaded, and the rank's GPU is made ready."""

import sys

import numpy  # noqa: F401
from mpi4py import MPI

if "cuda" in sys.argv:
    import cupy

    gpus = cupy.cuda.runtime.getDeviceCount()
    cupy.cuda.Device(MPI.COMM_WORLD.rank % gpus).use()
    cupy.cuda.runtime.free(0)  # makes the context
