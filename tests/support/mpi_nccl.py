# SPDX-License-Identifier: MIT
"""What stands for CuPy's bindings of NCCL where `numpy_cupy` stands for CuPy: MPI, on the memory at the addresses that it gets.

Every operation is complete when its call returns, and only then: as if a GPU ran one after the other, in the order in which they
are enqueued. What would wait for ever on such a GPU does so here.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np

calls: Counter[str] = Counter()


def _at(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class _Communicator:
    def __init__(self, comm: Any) -> None:
        self._comm = comm.Dup()

    def bcast(self, address, size, datatype, root, stream):
        calls["bcast"] += 1
        self._comm.Bcast(_at(address, size), root)

    def send(self, address, size, datatype, peer, stream):
        calls["send"] += 1
        self._comm.Ssend(_at(address, size), peer)

    def recv(self, address, size, datatype, peer, stream):
        calls["recv"] += 1
        self._comm.Recv(_at(address, size), peer)

    def check_async_error(self):
        pass

    def abort(self):
        pass

    destroy = abort


def install(comm: Any) -> None:
    """To be called after `numpy_cupy.install`."""
    from hybrid.devices import cuda_nccl, nccl

    def communicator(size: int, unique_id: Any, rank: int) -> _Communicator:
        assert (size, rank) == (comm.size, comm.rank)
        return _Communicator(comm)

    module = SimpleNamespace(
        NCCL_UINT8=1,
        NcclError=type("NcclError", (RuntimeError,), {}),
        NcclCommunicator=communicator,
        get_unique_id=lambda: (1,),
        groupStart=lambda: None,
        groupEnd=lambda: None,
    )
    nccl.load_nccl = cuda_nccl.load_nccl = lambda: module
