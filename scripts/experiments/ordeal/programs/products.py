# SPDX-License-Identifier: MIT
"""A program over hybrid.multiply, without a supervisor: python -m mpi4py products.py PRODUCTS"""

import sys

import numpy as np
from mpi4py import MPI

import hybrid

comm = MPI.COMM_WORLD
times = int(sys.argv[1])
a = b = None
if comm.rank == 0:
    a, b = np.random.default_rng(0).standard_normal((2, 1000, 1000))
for _ in range(times):
    c = hybrid.multiply(a, b, comm=comm, threads=1)
    if comm.rank == 0:
        np.testing.assert_allclose(c[0], a[0] @ b)
if comm.rank == 0:
    print(f"{times} products", flush=True)
