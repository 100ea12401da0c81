"""What this process sees of GPUs: python -m hybrid.diagnostics.probes.gpus LIMIT. No context is made on any of them."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import asdict
from importlib import metadata
from typing import Any

from hybrid.diagnostics.probes.protocol import begin, say
from hybrid.errors import DeviceUnavailable, one_line


def main() -> None:
    begin(int(sys.argv[1]))
    try:
        driver: Any = ctypes.CDLL("libcuda.so.1")
    except OSError:
        say(driver=None)
        return
    # The driver by itself first: what it sees does not depend on what Python has.
    version, count = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    say(driver=version.value)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    say(status=status, status_name=_name(driver, status), visible=count.value)
    say(packages=sorted(_cupy_packages()))
    try:
        import cupy

        say(cupy=cupy.__version__, runtime=cupy.cuda.runtime.runtimeGetVersion())
    except Exception as error:  # CuPy's own, whatever a broken installation raises
        say(cupy_error=one_line(error))
    from hybrid.devices.cuda_gpus import usable_gpus

    try:
        say(gpus=[asdict(gpu) for gpu in usable_gpus()])
    except DeviceUnavailable as missing:
        say(missing=str(missing))


def _cupy_packages() -> set[str]:
    """Only one of them can be the cupy that is imported."""
    names = {str(found.metadata["Name"]).lower() for found in metadata.distributions() if found.metadata["Name"]}
    return {name for name in names if name == "cupy" or name.startswith(("cupy-cuda", "cupy-rocm"))}


def _name(driver: Any, status: int) -> str:
    name = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(name))
    return (name.value or b"an unknown error").decode()


if __name__ == "__main__":
    main()
