"""hybrid.multiply with ordinary private arrays of rank 0, with and without `out`: wall time at rank 0, from the second call on.

`scripts/bench_hosts.py` starts it: mpirun -n P python -m mpi4py scripts/hosts_library.py --sizes 8000 --json FILE
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from hosts_common import options_of, refuse_wrong, say, uniform
from mpi4py import MPI

import hybrid

comm = MPI.COMM_WORLD
WAYS = ("library", "library, new C")


class Calls:
    """Products of one size. The first call checks its product."""

    def __init__(self, n: int, device: str) -> None:
        self._device = device
        self._root = comm.rank == 0
        self.a: np.ndarray | None = uniform(n) if self._root else None
        self.b: np.ndarray | None = uniform(n) if self._root else None
        self.c = np.full((n, n), np.nan) if self._root else None

    def first(self, way: str) -> float:
        return self._timed(way, check=True)

    def once(self, way: str, *, look: bool) -> float:
        """`look`: at the product, after the clock has stopped."""
        if look and self.c is not None:
            self.c.fill(np.nan)  # what is not written shall show
        return self._timed(way, check=False, look=look)

    def _timed(self, way: str, *, check: bool, look: bool = False) -> float:
        out = self.c if way == "library" else None
        comm.Barrier()
        began = time.perf_counter()
        c = hybrid.multiply(self.a, self.b, comm=comm, out=out, check=check, device=self._device)
        comm.Barrier()
        seconds = time.perf_counter() - began
        if look:
            self._refuse_wrong(c)
        return seconds

    def _refuse_wrong(self, c: Any) -> None:
        if self._root:
            refuse_wrong(self.a, self.b, c)


def main() -> None:
    options = options_of(__doc__)
    for n in options.sizes:
        calls = Calls(n, options.device)
        setup = {way: calls.first(way) for way in WAYS}
        for way in WAYS:
            calls.once(way, look=True)  # neither the check nor what the other way has changed is in what follows
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for repeat in range(options.repeat):
            for way in WAYS if repeat % 2 == 0 else WAYS[::-1]:
                times[way].append(calls.once(way, look=repeat == options.repeat - 1))
        if comm.rank == 0:
            for way in WAYS:
                say(options.json, way, comm.size, n, times[way], setup=setup[way])


if __name__ == "__main__":
    main()
