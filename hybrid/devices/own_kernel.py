# SPDX-License-Identifier: MIT
"""A user's own CUDA kernel on this process's GPU: compiled by NVRTC, launched on arrays, and timed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybrid.devices.kernel_cache import trust_own_cache_only
from hybrid.devices.prepared_launch import PreparedLaunch, allow_shared_memory, resources
from hybrid.errors import DeviceUnavailable, one_line

_OPTIONS = ("-std=c++17",)
_ARCHITECTURES = frozenset({35, 50, 60, 70, 75, 80, 86, 89, 90, 100, 120})  # of which each NVRTC knows some


class OwnKernel:
    """One instance of a kernel. DeviceUnavailable if it does not compile; its text says what its file is called."""

    def __init__(self, text: str, instance: str) -> None:
        import cupy

        trust_own_cache_only()
        module = cupy.RawModule(code=text, options=_OPTIONS, name_expressions=(instance,))
        try:
            self._function = module.get_function(instance).kernel
        except cupy.cuda.compiler.CompileException as error:
            raise DeviceUnavailable(f"NVRTC does not compile it: {_first_error(str(error))}") from None

    @property
    def resources(self) -> tuple[int, int, int]:
        """Registers of a thread, bytes of static shared memory, and bytes of local memory."""
        return resources(self._function)

    def prepared(
        self, grid: Sequence[int], block: Sequence[int], shared: int, arguments: Sequence[np.ndarray]
    ) -> Callable[[], None]:
        """A launch on the current stream. `arguments`: by value."""
        from cupy.cuda import get_current_stream

        allow_shared_memory(self._function, shared)
        launch = PreparedLaunch(self._function, tuple(grid), tuple(block), arguments, shared)
        return lambda: launch(get_current_stream().ptr)


def on_device(array: np.ndarray) -> Any:
    """A copy of it, as CuPy's array."""
    import cupy

    return cupy.asarray(array)


def failure_of(work: Callable[[], None]) -> str:
    """Do this and wait for the GPU: CUDA's words for what went wrong, with its name for it; "" if nothing did."""
    import cupy
    from cupy_backends.cuda.api import driver, runtime

    try:
        work()
        cupy.cuda.Device().synchronize()
    except (driver.CUDADriverError, runtime.CUDARuntimeError) as error:
        name, _, said = str(error).partition(": ")
        return f"{said or name} ({name})"
    return ""


def milliseconds(launch: Callable[[], None], count: int) -> list[float]:
    """Of so many launches each, by CUDA events."""
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


def assembler_log(text: str, instance: str, capability: int) -> tuple[str, int]:
    """What NVRTC's assembler says of an instance, and the compute capability, times ten, that it was compiled for: the nearest
    that it knows. No GPU is needed. DeviceUnavailable where there is no NVRTC, or it does not compile."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceUnavailable(f"NVRTC cannot be loaded ({one_line(error)})") from None
    log = ""
    for architecture in sorted(_ARCHITECTURES | {capability}, key=lambda each: (abs(each - capability), each)):
        program = nvrtc.createProgram(text, "", (), ())
        try:
            nvrtc.addNameExpression(program, instance)
            nvrtc.compileProgram(program, (*_OPTIONS, f"-arch=sm_{architecture}", "--ptxas-options=-v"))
            return nvrtc.getProgramLog(program), architecture
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            if "INVALID_OPTION" not in str(error):
                break
        finally:
            nvrtc.destroyProgram(program)
    raise DeviceUnavailable(f"NVRTC does not compile it: {_first_error(log)}")
