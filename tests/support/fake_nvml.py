# SPDX-License-Identifier: MIT
"""A made-up NVML, to stand for the module pynvml."""

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
