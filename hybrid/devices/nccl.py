# SPDX-License-Identifier: MIT
"""NCCL through CuPy's bindings: loading the library, and a GPU's part in a communicator of all ranks."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hybrid.core.installation import install
from hybrid.core.spans import Span
from hybrid.errors import DeviceUnavailable, one_line

_LIBRARY = "libnccl.so.2"
_BINDINGS = "cupy_backends.cuda.libs.nccl"


@cache
def load_nccl() -> Any:
    """CuPy's bindings. DeviceUnavailable, with what to install, where they or the library cannot be loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of several lines, where CuPy does not find the library: we raise instead
        try:
            module = importlib.import_module("cupy.cuda.nccl")
        except ImportError as error:
            raise _unavailable(one_line(error)) from None
    if module.available:
        return module
    # CuPy leaves the search to the dynamic loader, which does not look where pip installs the library. Once it is loaded from
    # there by its path, the bindings, whose import failed, can be imported.
    for path in _installed_by_pip():
        try:
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise _unavailable(one_line(error)) from None
    try:
        return importlib.import_module(_BINDINGS)
    except ImportError as error:
        raise _unavailable(one_line(error)) from None


def _installed_by_pip() -> list[Path]:
    """The library of nvidia-nccl-cu12 or nvidia-nccl-cu13, which install to the same folder."""
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        return []
    folders = list(package.submodule_search_locations or []) if package else []
    paths = [Path(folder) / "lib" / _LIBRARY for folder in folders]
    return [path for path in paths if path.is_file()]


def _unavailable(reason: str) -> DeviceUnavailable:
    return DeviceUnavailable(f"NCCL cannot be used ({reason}): {install('nccl13')} (or nccl12)", code="nccl")


def unique_id() -> Any:
    """A new communicator's id (ncclGetUniqueId)."""
    with _as_device_unavailable():
        return load_nccl().get_unique_id()


class NcclCommunicator:
    """This rank's part in a communicator, with the current GPU, which no other rank may use."""

    def __init__(self, unique_id: Any, rank: int, size: int) -> None:
        self._nccl = load_nccl()
        with _as_device_unavailable():
            self._communicator = self._nccl.NcclCommunicator(size, unique_id, rank)
        # Runs when it is garbage-collected or Python ends. CuPy would call ncclCommDestroy then, which is collective and hangs
        # where another rank does not call it.
        self._abort_once = weakref.finalize(self, self._communicator.abort)

    def allgather_rows(self, address: int, row_bytes: int, rows_of: Sequence[Span], stream: int) -> None:
        """Gather all ranks' rows in place, by a broadcast from each: ncclAllGather would want the same number from all ranks."""
        with _as_device_unavailable():
            self._nccl.groupStart()
            try:
                for rank, rows in enumerate(rows_of):
                    if len(rows):
                        start, size = address + rows.lo * row_bytes, len(rows) * row_bytes
                        self._communicator.bcast(start, size, self._nccl.NCCL_UINT8, rank, stream)
            finally:
                self._nccl.groupEnd()

    def send(self, address: int, size: int, to: int, stream: int) -> None:
        """Send so many bytes to a rank (ncclSend)."""
        with _as_device_unavailable():
            self._communicator.send(address, size, self._nccl.NCCL_UINT8, to, stream)

    def receive(self, address: int, size: int, source: int, stream: int) -> None:
        """Receive so many bytes from a rank (ncclRecv)."""
        with _as_device_unavailable():
            self._communicator.recv(address, size, self._nccl.NCCL_UINT8, source, stream)

    def check(self) -> None:
        with _as_device_unavailable():
            self._communicator.check_async_error()

    def destroy(self) -> None:
        self._communicator.destroy()
        self._abort_once.detach()

    def abort(self) -> None:
        self._abort_once()


@contextmanager
def _as_device_unavailable() -> Iterator[None]:
    """Turn NCCL's errors, whose messages have several lines, into a DeviceUnavailable of one line."""
    try:
        yield
    except (load_nccl().NcclError, KeyError) as error:  # CuPy lacks names for some of NCCL's codes, and raises KeyError
        raise DeviceUnavailable(f"NCCL failed ({one_line(error)}); NCCL_DEBUG=WARN tells more", code="nccl") from None
