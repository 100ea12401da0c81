"""hybrid.multiply of row-blocks that lie on the ranks' GPUs, C's rows staying there: no byte through the host or rank 0.

`scripts/bench_hosts.py` starts it: mpirun -n P python -m mpi4py scripts/hosts_resident.py --sizes 8000 --json FILE
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from hosts_common import options_of, say
from mpi4py import MPI

import hybrid

comm = MPI.COMM_WORLD


def maker(device: str) -> tuple[Callable[[int, int], Any], Callable[[], Any]]:
    """What makes random rows where this rank multiplies, and what waits for all work there."""
    if device != "cuda":
        on_host = np.random.default_rng()
        return lambda rows, columns: on_host.random((rows, columns)), lambda: None
    import cupy

    gpu = cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount())
    gpu.use()
    random = cupy.random.default_rng()
    return lambda rows, columns: random.random((rows, columns)), gpu.synchronize


def seconds_of_product(a: Any, b: Any, finish: Callable[[], Any], device: str, *, check: bool) -> float:
    finish()
    comm.Barrier()
    began = time.perf_counter()
    hybrid.multiply(a, b, comm=comm, check=check, device=device)
    finish()
    comm.Barrier()
    return time.perf_counter() - began


def main() -> None:
    options = options_of(__doc__)
    random, finish = maker(options.device)
    for n in options.sizes:
        a, b = (hybrid.RowBlock(random(n // comm.size, n)) for _ in range(2))
        setup = seconds_of_product(a, b, finish, options.device, check=True)
        times = [seconds_of_product(a, b, finish, options.device, check=False) for _ in range(options.repeat + 1)]
        if comm.rank == 0:  # after the check, the first one warms up again
            say(options.json, "resident", comm.size, n, times[1:], setup=setup)


if __name__ == "__main__":
    main()
