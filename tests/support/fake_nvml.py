# SPDX-License-Identifier: MIT
"""A made-up NVML, to stand for the module pynvml or for NVML's own library."""

from __future__ import annotations

from itertools import chain, repeat
from types import SimpleNamespace


class NVMLError(Exception):
    pass


class NotSupported(NVMLError):
    pass


def nvml(**answers):
    """A module that gives the values of each answer in turn, the last for ever; an exception is raised."""
    values = {
        "nvmlInit": [None],
        "nvmlDeviceGetHandleByUUID": ["handle"],
        "nvmlDeviceGetTemperatureThreshold": [90],
        "nvmlDeviceGetClockInfo": [1980],
        "nvmlDeviceGetPowerUsage": [400_000],
        "nvmlDeviceGetTemperature": [60],
        "nvmlDeviceGetTotalEccErrors": [0],
        "nvmlDeviceGetCurrentClocksThrottleReasons": [0],
        "nvmlDeviceGetTotalEnergyConsumption": [1_000_000],
        "nvmlDeviceGetEnforcedPowerLimit": [650_000],
        **answers,
    }
    names = ("TEMPERATURE_THRESHOLD_SLOWDOWN", "CLOCK_SM", "TEMPERATURE_GPU", "MEMORY_ERROR_TYPE_CORRECTED",
             "MEMORY_ERROR_TYPE_UNCORRECTED", "VOLATILE_ECC")  # fmt: skip
    module = SimpleNamespace(NVMLError=NVMLError, NVMLError_NotSupported=NotSupported)
    for number, name in enumerate(names):
        setattr(module, f"NVML_{name}", number)

    def answering(sequence):
        turns = chain(sequence, repeat(sequence[-1]))

        def answer(*arguments):
            value = next(turns)
            if isinstance(value, Exception):
                raise value
            return value(*arguments) if callable(value) else value

        return answer

    for name, sequence in values.items():
        setattr(module, name, answering(sequence))
    return module


class Library:
    """What stands for NVML's library. Its functions give what those of `nvml` with these answers give, as C does: they return
    0, or the number of an error."""

    def __init__(self, **answers):
        self._module, self._errors, self._handles = nvml(**answers), ["Success"], [None]

    def nvmlInit_v2(self):
        return self._asked("nvmlInit")[0]

    def nvmlDeviceGetHandleByUUID(self, uuid, into):
        code, handle = self._asked("nvmlDeviceGetHandleByUUID", uuid.decode())
        into._obj.value = len(self._handles)
        self._handles.append(handle)
        return code

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, into):
        return self._told("nvmlDeviceGetTotalEnergyConsumption", handle, into)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle, into):
        return self._told("nvmlDeviceGetEnforcedPowerLimit", handle, into)

    def nvmlErrorString(self, code):
        return self._errors[code].encode()

    def _told(self, name, handle, into):
        code, value = self._asked(name, self._handles[handle.value])
        if not code:
            into._obj.value = value
        return code

    def _asked(self, name, *arguments):
        try:
            return 0, getattr(self._module, name)(*arguments)
        except NVMLError as error:
            self._errors.append(str(error))
            return len(self._errors) - 1, None


def load_as_nvml(monkeypatch, library):
    """Let the library be NVML's; with None there is none."""

    def load():
        if library is None:
            raise OSError("no such file")
        return library

    monkeypatch.setattr("hybrid.devices.nvml.load_library", load)
