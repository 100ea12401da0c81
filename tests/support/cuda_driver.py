# SPDX-License-Identifier: MIT
"""What stands for the CUDA driver's library, of a machine with three GPUs."""

from __future__ import annotations

import threading


class Driver:
    """Its CUdevices are 10, 11 and 12, and the primary contexts of these 110, 111 and 112. `contexts`: of which devices one was
    created, once for each time."""

    def __init__(self, broken=""):
        self.broken, self.contexts = broken, []
        self._of_thread = threading.local()

    @property
    def current(self):
        """The calling thread's context."""
        return getattr(self._of_thread, "context", 0)

    @current.setter
    def current(self, context):
        self._of_thread.context = context

    def __getattr__(self, function):
        return lambda *arguments: 100 if function == self.broken else getattr(self, f"_{function}")(*arguments)

    def _cuCtxGetCurrent(self, context):
        context._obj.value = self.current
        return 0

    def _cuCtxSetCurrent(self, context):
        self.current = context.value or 0
        return 0

    def _cuInit(self, flags):
        return 0

    def _cuDeviceGetCount(self, count):
        count._obj.value = 3
        return 0

    def _cuDeviceGet(self, device, index):
        device._obj.value = 10 + index
        return 0

    def _cuDeviceGetUuid_v2(self, uuid, device):
        uuid[:] = bytes([0, 0xAB, 0, *range(0xB0, 0xBB), device.value, 0])
        return 0

    def _cuDevicePrimaryCtxRetain(self, context, device):
        self.contexts.append(device.value)
        context._obj.value = 100 + device.value
        return 0

    def _cuDevicePrimaryCtxRelease_v2(self, device):
        self.contexts.remove(device.value)
        return 0
