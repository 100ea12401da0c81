# SPDX-License-Identifier: MIT
"""Samples a GPU by NVML while it works: clock, power, temperature, ECC errors and reasons for throttling.

Without NVML, which is optional (extra `watch`), the finding says why nothing was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from threading import Event, Thread
from typing import Any

from hybrid.core.installation import install
from hybrid.core.problem import record
from hybrid.diagnostics.finding import Finding, Unknown, note, ok, unknown, wrong
from hybrid.errors import one_line

PERIOD = 0.5  # seconds between two samples
_SUBJECT = "gpu watch"
# NVML's harmful reasons for a lower clock. The power cap is usual under full load.
_HARMFUL = {0x08: "hardware slowdown", 0x20: "too hot (software)", 0x40: "too hot (hardware)", 0x80: "power brake"}
_POWER_CAP = 0x04
_CAUSES = "see nvidia-smi -q -d PERFORMANCE,TEMPERATURE,ECC; cooling and power supply first"


@record
class Watched:
    """The samples of one GPU in short; None for what it does not report."""

    samples: int
    clock: tuple[int, int] | None = None  # least and most MHz of the multiprocessors
    power: float | None = None  # most watts
    temperature: int | None = None  # highest, in degrees Celsius
    limit: int | None = None  # the temperature at which the GPU slows down
    corrected: int | None = None  # ECC errors since the start
    uncorrected: int | None = None
    slowed: tuple[str, ...] = ()  # harmful reasons for a lower clock
    capped: bool = False  # the power cap lowered the clock
    trouble: str = ""  # why sampling stopped


class GpuWatch:
    """Samples one GPU in a thread from construction to `stop`. Never raises: `stop` returns the reason for a failure."""

    def __init__(self, uuid: str) -> None:
        self._trouble, self._samples = "", list[dict[str, int | None]]()
        self._done, self._thread = Event(), Thread(target=self._sample_until_done, daemon=True)
        try:
            import pynvml as nvml
        except ImportError:
            self._trouble = f"nvidia-ml-py is not installed: {install('watch')}"
            return
        self._nvml: Any = nvml
        try:
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            self._limit = self._query(nvml.nvmlDeviceGetTemperatureThreshold, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        except nvml.NVMLError as error:
            self._trouble = f"NVML does not tell about {uuid} ({one_line(error)})"
            return
        self._sample()
        self._thread.start()

    def stop(self) -> Watched | Unknown:
        """The summary of the samples; Unknown if there are none."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self._trouble:
            self._sample()
        if not self._samples:
            return Unknown(self._trouble)
        seen = {name: [value for each in self._samples if (value := each[name]) is not None] for name in self._samples[0]}
        bits = reduce(or_, seen["reasons"], 0)
        clock, power = seen["clock"], seen["power"]
        corrected, uncorrected = (max(of) - min(of) if (of := seen[name]) else None for name in ("corrected", "uncorrected"))
        return Watched(
            len(self._samples),
            (min(clock), max(clock)) if clock else None,
            max(power) / 1000 if power else None,
            max(seen["temperature"], default=None),
            self._limit,
            corrected,
            uncorrected,
            tuple(name for bit, name in _HARMFUL.items() if bits & bit),
            bool(bits & _POWER_CAP),
            self._trouble,
        )

    def _sample_until_done(self) -> None:
        while not self._trouble and not self._done.wait(PERIOD):
            self._sample()

    def _sample(self) -> None:
        nvml = self._nvml
        ecc, since_boot = nvml.nvmlDeviceGetTotalEccErrors, nvml.NVML_VOLATILE_ECC
        try:
            sample = {
                "clock": self._query(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
                "power": self._query(nvml.nvmlDeviceGetPowerUsage),
                "temperature": self._query(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
                "corrected": self._query(ecc, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, since_boot),
                "uncorrected": self._query(ecc, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, since_boot),
                # The function's old name, since drivers before 535 lack the new one.
                "reasons": self._query(nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
            }
        except nvml.NVMLError as error:  # such as a GPU that has fallen off the bus
            self._trouble = one_line(error)
        else:
            self._samples.append(sample)

    def _query(self, question: Callable[..., Any], *what: int) -> int | None:
        """NVML's answer; None if the GPU does not support the query."""
        try:
            return int(question(self._handle, *what))
        except self._nvml.NVMLError_NotSupported:
            return None


def judge(watched: Sequence[Watched | Unknown | None], names: Sequence[str], why_no_gpu: str) -> list[Finding]:
    """`watched[rank]`: the rank's GPU; None if another rank watched it, or there is none. `names[rank]`: for messages."""
    found = []
    for seen, name in zip(watched, names, strict=True):
        if isinstance(seen, Unknown):
            found.append(unknown(_SUBJECT, f"{name}: not watched: {seen.reason}"))
        elif seen is not None:
            faults = [f"slowed down: {', '.join(seen.slowed)}"] if seen.slowed else []
            if seen.temperature is not None and seen.limit is not None and seen.temperature >= seen.limit:
                faults.append(f"{seen.temperature} °C, and it slows down from {seen.limit} °C on")
            if seen.uncorrected:
                faults.append(f"{seen.uncorrected} ECC errors that could not be corrected")
            if seen.trouble:
                faults.append(f"it stopped answering: {seen.trouble}")
            if faults:
                found.append(wrong(_SUBJECT, f"{name}: {'; '.join(faults)} ({summary(seen)})", _CAUSES, code="gpu-health"))
            else:
                found.append((note if seen.corrected else ok)(_SUBJECT, f"{name}: {summary(seen)}", code="gpu-health"))
    return found or [note(_SUBJECT, f"not watched: {why_no_gpu}", code="no-gpu")]


def summary(seen: Watched) -> str:
    parts = []
    if seen.clock:
        parts.append(f"{seen.clock[0]} to {seen.clock[1]} MHz" + (", lowered to keep within its power" if seen.capped else ""))
    if seen.power is not None:
        parts.append(f"up to {seen.power:.0f} W")
    if seen.temperature is not None:
        parts.append(f"up to {seen.temperature} °C")
    if seen.corrected is not None:
        parts.append(f"{seen.corrected} ECC errors corrected, {seen.uncorrected} not")
    return "; ".join(parts) or "it tells nothing"
