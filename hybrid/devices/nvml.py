# SPDX-License-Identifier: MIT
"""GPUs' energy and power limits by NVML, NVIDIA's library for monitoring, which comes with the driver.

A GPU is identified by its UUID, since NVML numbers GPUs otherwise than CUDA.

The few functions needed here are called in the library itself: pynvml (extra `watch`), which has all of them, takes up to 0.1 s
to load, and every product on a GPU would wait for it.
"""

from __future__ import annotations

import ctypes
from typing import Any

from hybrid.core.installation import install
from hybrid.errors import DeviceUnavailable, one_line

LIBRARY = "libnvidia-ml.so.1"


def load_nvml() -> Any:
    """pynvml, initialized; DeviceUnavailable, with the reason, where there is none."""
    try:
        import pynvml as nvml
    except ImportError:
        raise DeviceUnavailable(f"nvidia-ml-py is not installed: {install('watch')}", code="package-missing") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise DeviceUnavailable(f"NVML does not start ({one_line(error)})", code="nvml") from None
    return nvml


class GpuEnergy:
    """The counter of a whole GPU's energy, whoever uses it."""

    def __init__(self, uuid: str) -> None:
        """DeviceUnavailable, with the reason, where it cannot be read."""
        self._gpu = _Gpu(uuid)
        self.joules()

    def joules(self) -> float:
        """The energy since the driver was loaded. DeviceUnavailable where the GPU does not tell it, as older ones and MIG
        instances do not."""
        return self._gpu.told("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong()) / 1000


def power_limit(uuid: str) -> float:
    """The GPU's current power limit in watts; DeviceUnavailable, with the reason, where the GPU does not tell it."""
    return _Gpu(uuid).told("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint()) / 1000


class _Gpu:
    """A GPU, as NVML tells of it."""

    def __init__(self, uuid: str) -> None:
        """DeviceUnavailable, with the reason, where NVML does not know it."""
        try:
            self._library = load_library()
        except OSError:
            raise DeviceUnavailable(f"no NVML ({LIBRARY}) on this machine", code="nvml") from None
        if code := self._library.nvmlInit_v2():
            raise DeviceUnavailable(f"NVML does not start ({self._meaning(code)})", code="nvml")
        self._uuid, self._handle = uuid, ctypes.c_void_p()
        self._ask("nvmlDeviceGetHandleByUUID", uuid.encode())

    def told(self, question: str, number: Any) -> int:
        """What NVML writes into `number` when it is asked that of the GPU. DeviceUnavailable where it does not tell."""
        self._ask(question, self._handle, number)
        value: int = number.value
        return value

    def _ask(self, question: str, of: Any, answer: Any = None) -> None:
        """Call this function, which writes its answer; without `answer` the GPU's handle."""
        try:
            function = getattr(self._library, question)
        except AttributeError:
            raise DeviceUnavailable(f"NVML of this driver has no {question}", code="nvml") from None
        if code := function(of, ctypes.byref(self._handle if answer is None else answer)):
            raise DeviceUnavailable(f"NVML does not tell about {self._uuid} ({self._meaning(code)})", code="nvml")

    def _meaning(self, code: int) -> str:
        """NVML's words for an error."""
        return str(self._library.nvmlErrorString(code).decode(errors="replace"))


def load_library() -> Any:
    """NVML's library. OSError where there is none."""
    library = ctypes.CDLL(LIBRARY)
    library.nvmlErrorString.restype = ctypes.c_char_p
    return library
