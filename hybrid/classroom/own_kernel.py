# SPDX-License-Identifier: MIT
"""A user's own CUDA kernel on this process's GPU: compiled by NVRTC, launched on arrays, and timed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybrid.devices.cuda_kernels import PreparedLaunch, allow_shared_memory, trust_own_cache_only
from hybrid.errors import DeviceUnavailable

_OPTIONS = ("-std=c++17",)
_SHARED_SIZE_BYTES, _LOCAL_SIZE_BYTES, _NUM_REGS = 1, 3, 4  # of CUfunction_attribute
_ARCHITECTURES = frozenset({35, 50, 60, 70, 75, 80, 86, 89, 90, 100, 120})  # of which each NVRTC knows some


class OwnKernel:
    """One instance of a user's kernel."""

    def __init__(self, text: str, instance: str) -> None:
        """`text`: the source. `instance`: the kernel's name, with the template's arguments. DeviceUnavailable if it does not
        compile."""
        import cupy

        trust_own_cache_only()
        module = cupy.RawModule(code=text, options=_OPTIONS, name_expressions=(instance,))
        try:
            self._function = module.get_function(instance).kernel
        except cupy.cuda.compiler.CompileException as error:
            raise DeviceUnavailable(f"NVRTC does not compile it: {_first_error(str(error))}", code="compile-failed") from None

    @property
    def resources(self) -> tuple[int, int, int]:
        """Registers of a thread, bytes of static shared memory, and bytes of local memory."""
        return resources(self._function)

    def prepared(
        self, grid: Sequence[int], block: Sequence[int], shared: int, arguments: Sequence[np.ndarray]
    ) -> Callable[[], None]:
        """What launches the kernel on the current stream, when it is called. `arguments`: passed by value, each as an array."""
        from cupy.cuda import get_current_stream

        allow_shared_memory(self._function, shared)
        launch = PreparedLaunch(self._function, tuple(grid), tuple(block), arguments, shared)
        return lambda: launch(get_current_stream())


def resources(function: Any) -> tuple[int, int, int]:
    """Registers of a thread, bytes of static shared memory, and bytes of local memory, into which registers are spilled."""
    from cupy_backends.cuda.api import driver

    registers, shared, local = (
        driver.funcGetAttribute(attribute, function.ptr) for attribute in (_NUM_REGS, _SHARED_SIZE_BYTES, _LOCAL_SIZE_BYTES)
    )
    return registers, shared, local


def on_device(array: np.ndarray) -> Any:
    """A copy on the current GPU, as a CuPy array."""
    import cupy

    return cupy.asarray(array)


def failure_of(work: Callable[[], None]) -> str:
    """Do the work and wait for the GPU. Returns CUDA's message and name of the error; "" if there was none."""
    import cupy
    from cupy_backends.cuda.api import driver, runtime

    try:
        work()
        cupy.cuda.Device().synchronize()
    except (driver.CUDADriverError, runtime.CUDARuntimeError) as error:
        name, _, message = str(error).partition(": ")
        return f"{message or name} ({name})"
    return ""


def milliseconds(launch: Callable[[], None], count: int) -> list[float]:
    """The time of each of `count` launches, by CUDA events."""
    import cupy

    times = []
    for _ in range(count):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        launch()
        end.record()
        end.synchronize()
        times.append(float(cupy.cuda.get_elapsed_time(begin, end)))
    return times


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if re.search(r"\berror\b", line)]
    return lines[0] if lines else " ".join(log.split())[:200]
