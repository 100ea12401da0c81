# SPDX-License-Identifier: MIT
"""CUDA kernels compiled for the CPU and run on NumPy arrays."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import numpy as np

from hybrid.emulation.build import CHECKS, build
from hybrid.emulation.errors import EmulationError
from hybrid.emulation.observed import places_of
from hybrid.errors import one_line

Result = TypeVar("Result")

ORDERS = ("forward", "reverse", "shuffled")  # of blocks, of warps in a block, and of lanes in a warp
COPIES = ("late", "early", "mixed")  # asynchronous copies complete when waited for, at once, or at random
_BUILT_FOR = {checks: checks for checks in CHECKS} | {"loads": "accesses"}


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_ulonglong),
        ("seed", ctypes.c_ulonglong),
        ("order", ctypes.c_int),
        ("copies", ctypes.c_int),
        ("cluster", ctypes.c_uint),
    )


class _Array(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_longlong),
        ("columns", ctypes.c_longlong),
        ("stride", ctypes.c_longlong),
        ("item", ctypes.c_int),
    )


class EmulatedKernel:
    """One instance of a kernel template, such as tiled<double, 16>.

    `checks`: "" for none; "accesses" checks each access to memory; "loads" counts loads and checks nothing; "undefined" is
    UBSan, which reports on standard error.
    """

    def __init__(
        self, source: Path, expression: str, capability: int = 90, checks: str = "", among: tuple[_Library, int] | None = None
    ) -> None:
        """`among`: an open library that has the instance, and its number there."""
        if among is None:
            among = _Library(build(source, [expression], capability=capability, checks=_BUILT_FOR[checks])), 0
        self._library, number = among
        self.expression = expression
        # With checks="loads", for each matrix: how often the last call read each element; a read of half of its bytes counts 0.5.
        self.reads: list[np.ndarray] = []
        self._source = source.name
        self._checks = checks
        self._run = self._library.code[f"run_{number}"]
        self._run.argtypes, self._run.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int), ctypes.c_char_p

    @classmethod
    def several(
        cls, source: Path, expressions: Sequence[str], capability: int = 90, checks: str = ""
    ) -> dict[str, EmulatedKernel]:
        """Instances compiled together, which is faster than one by one."""
        library = _Library(build(source, expressions, capability=capability, checks=_BUILT_FOR[checks]))
        return {each: cls(source, each, checks=checks, among=(library, number)) for number, each in enumerate(expressions)}

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        shared_bytes: int,
        matrices: Sequence[np.ndarray],
        *,
        order: str = "forward",
        copies: str = "late",
        seed: int = 0,
        cluster: int = 1,
    ) -> None:
        """Run the kernel on A, B and C, of which it writes only the last; rows are contiguous, with any leading dimension.

        EmulationError for an invalid launch, or when threads do what CUDA leaves undefined; C is then undefined, too.
        """
        of_grid, of_block = ((*each, 1, 1)[:3] for each in (grid, block))
        launch = _Launch(of_grid, of_block, shared_bytes, seed, ORDERS.index(order), COPIES.index(copies), cluster)
        arrays = (_Array * len(matrices))(*map(as_c_array, matrices))
        if not matrices[-1].flags.writeable:
            raise EmulationError("launch", f"{self.expression}: the last matrix cannot be written to")

        def run() -> bytes | None:
            self._watch(arrays)
            error: bytes | None = self._run(ctypes.byref(launch), arrays, len(matrices))
            return error

        if error := self._library.run(run):
            kind, _, text = error.decode(errors="replace").partition("|")
            instructions = [int(offset) for offset in re.findall(r"@(\d+)", text)]  # told as FILE:LINE
            places = iter(places_of(instructions, self._library.path, {self._source}))
            text = re.sub(r"@\d+", lambda _: "{}:{}".format(*next(places)), text)
            raise EmulationError(kind, f"{self.expression}: {text}")

    def _watch(self, arrays: ctypes.Array[_Array]) -> None:
        """Register the matrices whose accesses are checked or counted."""
        if self._checks == "loads":
            sizes = ((each.rows, max(each.columns, each.stride)) for each in arrays)
            self.reads = [np.zeros(size)[:, : each.columns] for size, each in zip(sizes, arrays, strict=True)]
        for number in range(len(arrays) if _BUILT_FOR[self._checks] == "accesses" else 0):
            reads = ctypes.c_void_p(self.reads[number].ctypes.data if self.reads else None)
            self._library.code.watch(number, ctypes.byref(arrays[number]), reads)


class _Library:
    """A compiled library. Its runtime has global state, so it runs one kernel at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.code = ctypes.CDLL(str(path))
        except OSError as error:
            how = "delete that file, and let CXX name a C++ compiler or nothing"
            raise EmulationError("build", f"{one_line(error)}: {how}") from None
        self.lock = threading.Lock()

    def run(self, launch: Callable[[], Result]) -> Result:
        """Launch; called from the main thread, in another one, so that an interrupt is handled and stops the kernel after its
        block."""
        ended: Future[Result] = Future()
        given_up = False

        def run_alone() -> None:
            with self.lock:
                if given_up:
                    return
                try:
                    ended.set_result(launch())
                except BaseException as error:  # `result` raises it
                    ended.set_exception(error)

        if threading.current_thread() is not threading.main_thread():
            run_alone()
            return ended.result()
        try:
            threading.Thread(target=run_alone).start()
            return ended.result()
        except BaseException:
            given_up = True
            ctypes.c_int.in_dll(self.code, "stop_asked").value = 1
            with self.lock:  # free once the kernel no longer uses the matrices
                raise


def as_c_array(matrix: np.ndarray) -> _Array:
    """A matrix as the runtime takes it. EmulationError if its rows are not contiguous."""
    rows, columns = matrix.shape
    item = matrix.itemsize
    if matrix.size and ((columns > 1 and matrix.strides[1] != item) or matrix.strides[0] % item):
        raise EmulationError("launch", "a kernel takes matrices whose rows are contiguous")
    return _Array(matrix.ctypes.data, rows, columns, matrix.strides[0] // item, item)
