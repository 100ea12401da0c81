# SPDX-License-Identifier: MIT
"""GPUs' energy and power limits by NVML, NVIDIA's library for monitoring. It is optional (extra `watch`).

A GPU is identified by its UUID, since NVML numbers GPUs otherwise than CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybrid.core.installation import install
from hybrid.errors import DeviceUnavailable, one_line


def load_nvml() -> Any:
    """NVML's module, initialized; DeviceUnavailable, with the reason, where there is none."""
    try:
        import pynvml as nvml
    except ImportError:
        raise DeviceUnavailable(f"nvidia-ml-py is not installed: {install('watch')}") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise DeviceUnavailable(f"NVML does not start ({one_line(error)})") from None
    return nvml


class GpuEnergy:
    """The counter of a whole GPU's energy, whoever uses it."""

    def __init__(self, uuid: str) -> None:
        """DeviceUnavailable, with the reason, where it cannot be read."""
        self._nvml, self._handle, self._uuid = *_handle(uuid), uuid
        self.joules()

    def joules(self) -> float:
        """The energy since the driver was loaded. DeviceUnavailable where the GPU does not tell it, as older ones and MIG
        instances do not."""
        return _told(self._nvml, self._uuid, lambda nvml: nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000


def power_limit(uuid: str) -> float:
    """The GPU's current power limit in watts; DeviceUnavailable, with the reason, where the GPU does not tell it."""
    loaded, handle = _handle(uuid)
    return _told(loaded, uuid, lambda nvml: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000


def _handle(uuid: str) -> tuple[Any, Any]:
    """NVML's module, and its handle of the GPU."""
    loaded = load_nvml()
    return loaded, _told(loaded, uuid, lambda nvml: nvml.nvmlDeviceGetHandleByUUID(uuid))


def _told(nvml: Any, uuid: str, question: Callable[[Any], Any]) -> Any:
    """NVML's answer. Its errors become DeviceUnavailable."""
    try:
        return question(nvml)
    except nvml.NVMLError as error:
        raise DeviceUnavailable(f"NVML does not tell about {uuid} ({one_line(error)})") from None
