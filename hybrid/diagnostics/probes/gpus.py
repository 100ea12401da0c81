# SPDX-License-Identifier: MIT
"""Reports which GPUs this process sees, through the driver and through CuPy; makes no CUDA context on any of them."""

from __future__ import annotations

import ctypes
from dataclasses import asdict
from importlib import metadata
from typing import Any

from hybrid.devices.cuda_kernels import trust_own_cache_only
from hybrid.diagnostics.probes.protocol import report
from hybrid.errors import DeviceUnavailable, one_line


def main() -> None:
    try:
        driver: Any = ctypes.CDLL("libcuda.so.1")
    except OSError:
        report(driver=None)
        return
    # The driver by itself first: what it sees does not depend on which Python packages are installed.
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    report(driver=version.value)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    report(status=status, status_name=_name(driver, status), visible=count.value)
    report(packages=sorted(_cupy_packages()))
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


def _cupy_packages() -> set[str]:
    """The installed distributions of CuPy. Several overwrite each other's files, since all install a package named cupy."""
    names = {str(found.metadata["Name"]).lower() for found in metadata.distributions() if found.metadata["Name"]}
    return {name for name in names if name == "cupy" or name.startswith(("cupy-cuda", "cupy-rocm"))}


def _name(driver: Any, status: int) -> str:
    name = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    return (name.value or b"an unknown error").decode()
