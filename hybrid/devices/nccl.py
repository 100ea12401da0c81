"""A GPU's part in an NCCL communicator of all ranks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hybrid.core.spans import Span
from hybrid.devices.nccl_library import load_nccl
from hybrid.errors import DeviceUnavailable, one_line


def unique_id() -> Any:
    """Of a communicator to be made; CuPy's to understand."""
    with _told_in_a_line():
        return load_nccl().get_unique_id()


class NcclCommunicator:
    """On the current GPU, which no other rank uses."""

    def __init__(self, unique_id: Any, rank: int, size: int) -> None:
        self._nccl = load_nccl()
        with _told_in_a_line():
            self._communicator = self._nccl.NcclCommunicator(size, unique_id, rank)
        # When nothing refers to it any more, or Python ends: CuPy would have it left as all ranks together leave it.
        self._forgotten = weakref.finalize(self, self._communicator.abort)

    def gather_rows(self, address: int, row_bytes: int, rows_of: Sequence[Span], stream: int) -> None:
        """Each rank's rows, `row_bytes` from one to the next, from the same place in its memory to that of all others."""
        with _told_in_a_line():
            self._nccl.groupStart()
            try:
                for rank, rows in enumerate(rows_of):
                    if len(rows):
                        start, size = address + rows.lo * row_bytes, len(rows) * row_bytes
                        self._communicator.bcast(start, size, self._nccl.NCCL_UINT8, rank, stream)
            finally:
                self._nccl.groupEnd()

    def check(self) -> None:
        with _told_in_a_line():
            self._communicator.check_async_error()

    def leave(self) -> None:
        self._communicator.destroy()
        self._forgotten.detach()

    def abort(self) -> None:
        self._forgotten()


@contextmanager
def _told_in_a_line() -> Iterator[None]:
    try:
        yield
    except (load_nccl().NcclError, KeyError) as error:  # CuPy has no name for some of NCCL's errors, and raises KeyError
        raise DeviceUnavailable(f"NCCL failed ({one_line(error)}); NCCL_DEBUG=WARN tells more") from None
