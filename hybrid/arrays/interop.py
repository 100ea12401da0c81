# SPDX-License-Identifier: MIT
"""Conversions of operands: NumPy and CuPy arrays, objects with the buffer, array or DLPack protocol, and arrays that a node's
ranks share."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from hybrid.core.installation import install
from hybrid.core.problem import Span
from hybrid.errors import UsageError, one_line
from hybrid.host.memory import copy_rows
from hybrid.host.threads import CALL_BYTES, Result, on_threads, rows_of_about
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team


def as_array(value: Any, name: str) -> np.ndarray:
    """`value` as a NumPy array: a view if possible, a copy if it is on a GPU. UsageError if it is no array of numbers."""
    if value is None:
        raise UsageError(
            f"{name} is None at the root: pass the matrix there, or comm= where another rank has it", code="no-operand"
        )
    if isinstance(value, (str, os.PathLike)):
        raise UsageError(
            f"{name} is a path, and no matrix: pass numpy.load(path), or multiply files by python -m hybrid.matmul --a A --b B",
            code="no-numbers",
        )
    if on_gpu(value):
        value = as_gpu_array(value, name).get()
    elif not hasattr(value, "__array__") and not hasattr(value, "__array_interface__") and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    refuse_masked(value, name)
    try:
        array = np.asarray(value)
    except ValueError as error:  # such as for rows of different lengths
        raise UsageError(f"{name} is no array of numbers: {one_line(error)}", code="no-numbers") from None
    if array.dtype == object and not isinstance(value, np.ndarray):
        dense = ": pass .toarray()" if hasattr(value, "toarray") else ""  # one of SciPy's sparse matrices
        raise UsageError(f"{name} is of {type(value).__name__}, and no array of numbers{dense}", code="no-numbers")
    return array


def is_masked(value: Any) -> bool:
    """Whether it is a masked array, without importing numpy.ma, which takes longer than a small product."""
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(value, module.MaskedArray)


def refuse_masked(value: Any, name: str) -> None:
    """UsageError for a masked array."""
    if is_masked(value):
        raise UsageError(
            f"{name} is a masked array, and masked elements have no product: fill them first, with .filled(value)", code="masked"
        )


def as_gpu_array(value: Any, name: str) -> Any:
    """`value`, an array on a GPU, as a CuPy array without a copy."""
    try:
        import cupy
    except ImportError:
        raise UsageError(
            f"{name} lies on a GPU, which needs CuPy: {install('cuda13')} (or cuda12)", code="package-missing"
        ) from None
    return cupy.asarray(value) if hasattr(value, "__cuda_array_interface__") else cupy.from_dlpack(value)


def on_gpu(value: Any) -> bool:
    """Whether the array is in CUDA memory."""
    if hasattr(value, "__cuda_array_interface__"):
        return True
    return hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) in (2, 13)  # kDLCUDA, kDLCUDAManaged


def is_array(value: Any) -> bool:
    """Whether it is a NumPy or CuPy array."""
    return isinstance(value, np.ndarray) or (on_gpu(value) and hasattr(value, "ndim"))


def as_rows(array: Any, dtype: str, *, device: str, threads: int = 1) -> Any:
    """The array in row-major order, of type `dtype`, in memory that `device` can read: itself if possible, else a copy."""
    if on_gpu(array) and device == "cuda":
        import cupy

        array = cupy.asarray(array)
        with array.device:
            return cupy.ascontiguousarray(array, dtype)
    array = on_host(array)
    if array.dtype == dtype and array.dtype.isnative and array.flags.c_contiguous:
        return array
    rows = np.empty(array.shape, dtype)
    copy_rows(rows, array, threads)
    return rows


def where_it_lies(array: Any) -> Any:
    """The array as a CuPy or NumPy array, without a copy."""
    return as_gpu_array(array, "the array") if on_gpu(array) else np.asarray(array)


def on_host(array: Any) -> np.ndarray:
    """The array as a NumPy array; a copy if it is on a GPU."""
    if on_gpu(array):
        import cupy

        return cupy.asnumpy(array)
    return np.asarray(array)


def may_share_gpu_memory(one: Any, other: Any) -> bool:
    """Whether two contiguous arrays on a GPU have an address in common."""
    first, second = one.data.ptr, other.data.ptr
    return bool(first < second + other.nbytes and second < first + one.nbytes)


def copy_back(changed: Any, array: Any) -> None:
    """Copy `changed` back into an array on a GPU. A host array needs nothing: `on_host` returned it, and it was changed."""
    if on_gpu(array):
        is_there = on_gpu(changed) and changed.device.id == array.device.id
        with on_device_of(array):
            array[...] = changed if is_there else to_device_of(array, on_host(changed))


def fill(array: Any, value: float, threads: int) -> None:
    """Set all elements of an array on host or GPU, and wait for it."""
    if not on_gpu(array):
        copy_rows(array, value, threads)
        return
    with array.device:
        array.fill(value)
        array.device.synchronize()


def to_device_of(other: Any, array: np.ndarray) -> Any:
    """The array, copied to the GPU of `other` if that is on one."""
    if not on_gpu(other):
        return array
    import cupy

    if not array.dtype.isnative:  # CuPy has only native types
        array = array.astype(array.dtype.newbyteorder("="))
    with cupy.asarray(other).device:
        return cupy.asarray(array)


def await_callers_work(*arrays: Any) -> None:
    """Synchronize the caller's CUDA streams, whose kernels may still write the arrays, or use memory that the arrays got from a
    pool."""
    for array in arrays:
        if on_gpu(array):
            import cupy

            with array.device:
                cupy.cuda.get_current_stream().synchronize()


def on_device_of(array: Any) -> AbstractContextManager[Any]:
    """A context in which the array's GPU, if it is on one, is CuPy's current device."""
    return array.device if on_gpu(array) else nullcontext()


def by_rows(array: Any, work: Callable[[Span], Result], threads: int, at_once: int = CALL_BYTES) -> list[Result]:
    """The results of `work` for rows of about `at_once` bytes of the array, by threads; on a GPU for all rows."""
    rows = Span(0, len(array))
    parts = [rows] if on_gpu(array) else rows_of_about(at_once, rows, array.nbytes // max(1, len(array)))
    with on_device_of(array):
        return on_threads(threads, work, parts)


def broadcast(array: Any, shape: tuple[int, ...]) -> Any:
    """An array on a GPU, broadcast to this shape without a copy."""
    import cupy

    with array.device:
        return cupy.broadcast_to(array, shape)


def empty_beside(array: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """An uninitialized array on the device of `array`."""
    if on_gpu(array):
        import cupy

        with array.device:
            return cupy.empty(shape, dtype)
    return np.empty(shape, dtype)


@cache
def gpu_kernel(name: str) -> Any:
    """The kernel of integers with this name, which passes over memory once where CuPy's operators do so three times."""
    import cupy

    if name == "combine":
        return cupy.ElementwiseKernel(
            "P product, C c, float64 alpha, float64 beta", "R into", "into = static_cast<R>(alpha * product + beta * c)", name
        )
    word = "static_cast<unsigned long long>(static_cast<long long>(element)) * static_cast<unsigned long long>(x)"
    sums = "a + b", "sum = static_cast<long long>(a)", "0"
    return cupy.ReductionKernel("T element, int64 x", "int64 sum", word, *sums, name, reduce_type="unsigned long long")


def empty_on_gpu(index: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """An uninitialized array on this GPU; None if it does not fit."""
    import cupy

    try:
        with cupy.cuda.Device(index):
            return cupy.empty(shape, dtype)
    except MemoryError:
        return None


SharedLocation = tuple[int, int, bool]  # the number of a shared array, an offset in bytes, and whether it is transposed


class SharedArrays:
    """One rank's table of the arrays of `hybrid.empty`, which all ranks of the root's node share in memory.

    An array lives as long as the user's program holds it at its root, which has a weak reference here. The other ranks hold it
    until `drop` tells them that it was freed there.
    """

    def __init__(self) -> None:
        self._arrays: dict[int, np.ndarray | weakref.ref[np.ndarray]] = {}
        self._numbers: dict[int, int] = {}  # at the root: each array's number, by its id
        self.gone: list[int] = []  # numbers of arrays that were freed at this root, until `drop`

    def make(self, team: Team, shape: tuple[int, int], dtype: np.dtype, root: int) -> np.ndarray | None:
        """Collective: a new array on the ranks of the root's node, None on other nodes."""
        here = root in team.node_ranks
        rows = Span(0, shape[0] if here else 0)
        array = make_shared_matrices(team, {"array": rows}, {"array": shape[1]}, {"array": dtype})["array"].array
        if not here:
            return None
        number = team.serial  # unique, and the same on all ranks
        self._arrays[number] = weakref.ref(array) if team.rank == root else array
        if team.rank == root:
            self._numbers[id(array)] = number
            weakref.finalize(array, self._forget, id(array), number).atexit = False
        return array

    def _forget(self, key: int, number: int) -> None:
        del self._numbers[key]
        self._arrays.pop(number, None)
        self.gone.append(number)

    def location_of(self, array: np.ndarray | None, *, transposed: bool = False) -> SharedLocation | None:
        """The location of the root's `array` within a shared array, also as a view with another type; None if it is not shared
        or not contiguous. `transposed`: also accept the transpose of a contiguous matrix."""
        if array is not None and transposed and not array.flags.c_contiguous:
            found = self.location_of(array.T)
            return found and (*found[:2], True)
        if array is None or not (array.flags.c_contiguous and array.flags.aligned):
            return None
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        number = self._numbers.get(id(owner))
        return None if number is None else (number, array.ctypes.data - owner.ctypes.data, False)

    def drop(self, gone_at_roots: Iterable[Sequence[int]]) -> None:
        """Free the arrays in all roots' `gone`, after these were exchanged."""
        numbers = {number for gone in gone_at_roots for number in gone}
        self.gone = [number for number in self.gone if number not in numbers]
        for number in numbers:
            self._arrays.pop(number, None)

    def array_at(self, location: SharedLocation, shape: tuple[int, int], dtype: str) -> np.ndarray:
        """The matrix at a location from the root, on any rank of its node."""
        number, offset, transposed = location
        known = self._arrays[number]
        owner = known() if isinstance(known, weakref.ref) else known
        assert owner is not None
        size = shape[0] * shape[1] * np.dtype(dtype).itemsize
        elements = owner.reshape(-1).view(np.uint8)[offset : offset + size].view(dtype)
        return elements.reshape(shape[::-1]).T if transposed else elements.reshape(shape)
