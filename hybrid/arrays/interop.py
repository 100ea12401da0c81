"""NumPy, CuPy and whatever speaks their protocols: where an array lies, and how it becomes a matrix of ours."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from hybrid.errors import UsageError


def as_matrix(value: Any, name: str) -> np.ndarray:
    """The NumPy matrix behind anything with the buffer, array or DLPack protocol; a GPU's array is copied to the host."""
    if value is None:
        raise UsageError(f"{name} is None at the root, which must hold it")
    if on_gpu(value):
        value = as_gpu_matrix(value, name).get()
    elif not hasattr(value, "__array__") and not hasattr(value, "__array_interface__") and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    if isinstance(value, np.ma.MaskedArray):
        raise UsageError(f"{name} is a masked array, and what it masks has no product: fill it first, with .filled(value)")
    array = np.asarray(value)
    if array.ndim != 2:
        raise UsageError(f"{name} must have two dimensions, not {array.ndim}")
    return array


def as_gpu_matrix(value: Any, name: str) -> Any:
    """The CuPy matrix behind anything that lies on a GPU."""
    try:
        import cupy
    except ImportError:
        raise UsageError(f"{name} lies on a GPU, which takes CuPy: pip install 'hybrid-runner[cuda13]' (or cuda12)") from None
    array = cupy.asarray(value) if hasattr(value, "__cuda_array_interface__") else cupy.from_dlpack(value)
    if array.ndim != 2:
        raise UsageError(f"{name} must have two dimensions, not {array.ndim}")
    return array


def on_gpu(value: Any) -> bool:
    """Whether the array lies in a CUDA GPU's memory."""
    if hasattr(value, "__cuda_array_interface__"):
        return True
    return hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) in (2, 13)  # kDLCUDA, kDLCUDAManaged


@lru_cache(maxsize=16)
def common_dtype(a: np.dtype, b: np.dtype) -> str:
    """float32 or float64, where NumPy's promotion of the two types lands; UsageError elsewhere."""
    try:
        promoted = np.result_type(a, b).newbyteorder("=")
    except TypeError:
        promoted = None
    if promoted is None or promoted not in (np.float32, np.float64):
        types = f"{a}" if a == b else f"{a} and {b}"
        raise UsageError(f"{types} would give {promoted}: only products in float32 or float64 can be made; convert with .astype")
    return promoted.name


def as_rows(array: Any, dtype: str, *, device: str) -> Any:
    """The array as it lies where the device can copy from it, else a copy of it: contiguous in rows, in the type asked for."""
    if on_gpu(array):
        import cupy

        array = cupy.asarray(array)
        if device == "cuda":
            with array.device:
                return cupy.ascontiguousarray(array, dtype)
        array = cupy.asnumpy(array)
    return np.ascontiguousarray(array, dtype)


def on_host(array: Any) -> np.ndarray:
    if on_gpu(array):
        import cupy

        return cupy.asnumpy(array)
    return np.asarray(array)


def where_lies(other: Any, array: np.ndarray) -> Any:
    """The array, on the GPU that `other` lies on if it does."""
    if not on_gpu(other):
        return array
    import cupy

    with cupy.asarray(other).device:
        return cupy.asarray(array)


def await_callers_work(*arrays: Any) -> None:
    """What the caller has handed to its stream may still write the arrays, or use the memory they were given."""
    for array in arrays:
        if on_gpu(array):
            import cupy

            with array.device:
                cupy.cuda.get_current_stream().synchronize()


def empty_like(array: Any, rows: int, columns: int) -> Any:
    """A matrix of undefined contents where `array` lies."""
    if on_gpu(array):
        import cupy

        with array.device:
            return cupy.empty((rows, columns), array.dtype)
    return np.empty((rows, columns), array.dtype)
