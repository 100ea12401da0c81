# SPDX-License-Identifier: MIT
"""Tries in a child process what may kill or block it: python -m hybrid.diagnostics.probes MODULE.FUNCTION LIMIT ARGUMENT…

Calls a function of a module of this package with the arguments. The function reports each result at once, so that none is lost if
the next attempt kills the process. The process ends after LIMIT seconds, even if its parent is gone, and leaves no core file. The
probes here try to start MPI, the driver and CuPy, and a kernel on a GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from dataclasses import asdict
from importlib import import_module, metadata
from typing import Any

from hybrid.devices.cuda_kernels import trust_own_cache_only
from hybrid.errors import DeviceUnavailable, code_of, one_line
from hybrid.ranks.mpi import library_in_use, start_mpi


def report(**found: Any) -> None:
    """Write a line of JSON to standard output. The last value of a key counts."""
    sys.stdout.write(f"\n{json.dumps(found)}\n")  # a library may have printed an unfinished line
    sys.stdout.flush()


def mpi() -> None:
    start_mpi()
    report(library=asdict(library_in_use()))


PINNED_BYTES = 256 << 20
_SOURCE = 'extern "C" __global__ void add_one(int* numbers) { numbers[threadIdx.x] += 1; }'


def gpu_trial(index: str) -> None:
    """`index`: of the GPU, in this process's numbering."""
    os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # a kernel from the disk cache would not test the compiler
    trust_own_cache_only()
    import cupy
    import numpy as np

    cupy.cuda.Device(int(index)).use()
    report(stage="memory")
    numbers = cupy.asarray(np.arange(32, dtype=np.int32))
    report(stage="compiling")
    add_one = cupy.RawKernel(_SOURCE, "add_one")
    add_one.compile()
    report(stage="running")
    add_one((1,), (32,), (numbers,))
    report(works=bool((cupy.asnumpy(numbers) == np.arange(1, 33)).all()))
    runtime, memory = cupy.cuda.runtime, np.zeros(PINNED_BYTES, np.uint8)
    try:
        runtime.hostRegister(memory.ctypes.data, memory.nbytes, 0)
        runtime.hostUnregister(memory.ctypes.data)
        report(pin_trouble="")
    except runtime.CUDARuntimeError as error:
        report(pin_trouble=one_line(error))


def gpus() -> None:
    try:
        driver: Any = ctypes.CDLL("libcuda.so.1")
    except OSError:
        report(driver=None)
        return
    # First the driver by itself, whatever Python packages are installed.
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    report(driver=version.value)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    name = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    report(status=status, status_name=(name.value or b"an unknown error").decode(), visible=count.value)
    # Several distributions of CuPy overwrite each other's files, since all install a package named cupy.
    names = {str(found.metadata["Name"]).lower() for found in metadata.distributions()}
    report(packages=sorted(name for name in names if name == "cupy" or name.startswith(("cupy-cuda", "cupy-rocm"))))
    trust_own_cache_only()
    try:
        import cupy

        report(cupy=cupy.__version__, runtime=cupy.cuda.runtime.runtimeGetVersion())
    except Exception as error:  # a broken installation may raise anything
        report(cupy_error=one_line(error))
    from hybrid.devices.cuda_gpus import usable_gpus

    try:
        report(gpus=[asdict(gpu) for gpu in usable_gpus()])
    except DeviceUnavailable as missing:
        report(missing=str(missing))


if __name__ == "__main__":
    name, seconds, *arguments = sys.argv[1:]
    signal.alarm(int(seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    module, _, function = name.partition(".")
    try:
        getattr(import_module(f"hybrid.diagnostics.{module}"), function)(*arguments)
    except Exception as error:  # the rank that started this process judges it
        report(failed=one_line(error), code=code_of(error))
