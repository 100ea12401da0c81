"""The links alone: A and B from the host to the GPUs and C back, all at the same time, and nothing is multiplied.

No product is faster whose matrices take this way. Every rank copies its rows of the memory that its node's ranks share, over
its own GPU's link; what GPUs exchange is not counted. `scripts/bench_hosts.py` starts it:
mpirun -n P python -m mpi4py scripts/hosts_wires.py --sizes 8000 --json FILE
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from hosts_common import DTYPE, options_of, say
from mpi4py import MPI

import hybrid
from hybrid.core.spans import block
from hybrid.devices.cpu import CpuDevice
from hybrid.devices.cuda_gpus import usable_gpus

comm = MPI.COMM_WORLD


def device_for(name: str) -> Any:
    if name != "cuda":
        return CpuDevice(staged=True)
    from hybrid.devices.cuda_device import CudaDevice

    gpus = usable_gpus()
    return CudaDevice(gpus[comm.rank % len(gpus)])


class Wires:
    """This rank's rows of three n×n matrices, here and on its device."""

    def __init__(self, n: int, device: Any) -> None:
        rows = block(n, comm.size, comm.rank)
        self._device = device
        whole = [hybrid.empty((n, n), DTYPE, comm=comm) for _ in "ABC"]
        self._here = [matrix[rows.slice] for matrix in whole if matrix is not None]
        assert len(self._here) == len(whole), "all ranks are on one node"
        size = n * n * np.dtype(DTYPE).itemsize  # of its rows with their padding, and more
        self._memory = [device.reserve(size, shared=False) for _ in self._here]
        self._there = [device.matrix(memory, 0, len(rows), n, DTYPE) for memory in self._memory]
        for matrix in self._here:
            matrix.fill(comm.rank)
            device.pin(matrix)

    def seconds(self) -> float:
        comm.Barrier()
        began = time.perf_counter()
        for there, here in zip(self._there[:2], self._here[:2], strict=True):
            self._device.copy_in(there, here, [])
        self._device.copy_out(self._here[2], self._there[2], [])
        self._device.finish()
        comm.Barrier()
        return time.perf_counter() - began


def main() -> None:
    options = options_of(__doc__)
    device = device_for(options.device)
    for n in options.sizes:
        wires = Wires(n, device)
        times = [wires.seconds() for _ in range(options.repeat + 1)]
        if comm.rank == 0:
            say(options.json, "wires", comm.size, n, times[1:], setup=None)


if __name__ == "__main__":
    main()
