# SPDX-License-Identifier: MIT
"""Watches a GPU while it works: clock, power, temperature, ECC errors, and what slows its clock down, by NVML.

Without NVML, which is optional (extra `watch`), it says why nothing is watched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from threading import Event, Thread
from typing import Any

from hybrid.core.installation import install
from hybrid.core.problem import record
from hybrid.diagnostics.finding import Finding, Unknown, note, unknown, wrong
from hybrid.errors import one_line

PERIOD = 0.5  # seconds between two samples
_SUBJECT = "gpu watch"
# Those of NVML's reasons for a lower clock that mean trouble. That the power limit lowers it is usual under full load.
_HARMFUL = {0x08: "hardware slowdown", 0x20: "too hot (software)", 0x40: "too hot (hardware)", 0x80: "power brake"}
_POWER_CAP = 0x04
_CAUSES = "see nvidia-smi -q -d PERFORMANCE,TEMPERATURE,ECC; cooling and power supply first"


@record
class Watched:
    """What was seen of one GPU from start to stop; None is what it does not tell."""

    samples: int  # how often it was asked
    clock: tuple[int, int] | None = None  # least and most MHz of the multiprocessors
    power: float | None = None  # most watts
    temperature: int | None = None  # highest, in degrees Celsius
    limit: int | None = None  # the temperature from which on the GPU slows down
    corrected: int | None = None  # ECC errors since the start
    uncorrected: int | None = None
    slowed: tuple[str, ...] = ()  # what slowed it down that should not
    capped: bool = False  # its clock was lowered to keep within its power
    trouble: str = ""  # why it could not be asked any more


class GpuWatch:
    """Samples one GPU from a thread of its own, from when this is made until `stop`. It never fails: `stop` says why not."""

    def __init__(self, uuid: str, period: float = PERIOD) -> None:
        self._period, self._trouble, self._samples = period, "", list[dict[str, int | None]]()
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
            self._limit = self._asked(nvml.nvmlDeviceGetTemperatureThreshold, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        except nvml.NVMLError as error:
            self._trouble = f"NVML does not tell about {uuid} ({one_line(error)})"
            return
        self._sample()
        with suppress(RuntimeError):  # the limit of threads is reached: two samples are taken, at the start and at the end
            self._thread.start()

    def stop(self) -> Watched | Unknown:
        """What was seen; Unknown where nothing could be."""
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
        return Watched(
            len(self._samples),
            (min(clock), max(clock)) if clock else None,
            max(power) / 1000 if power else None,
            max(seen["temperature"], default=None),
            self._limit,
            _increase(seen["corrected"]),
            _increase(seen["uncorrected"]),
            tuple(name for bit, name in _HARMFUL.items() if bits & bit),
            bool(bits & _POWER_CAP),
            self._trouble,
        )

    def _sample_until_done(self) -> None:
        while not self._trouble and not self._done.wait(self._period):
            self._sample()

    def _sample(self) -> None:
        nvml = self._nvml
        ecc, since_boot = nvml.nvmlDeviceGetTotalEccErrors, nvml.NVML_VOLATILE_ECC
        try:
            sample = {
                "clock": self._asked(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
                "power": self._asked(nvml.nvmlDeviceGetPowerUsage),
                "temperature": self._asked(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
                "corrected": self._asked(ecc, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, since_boot),
                "uncorrected": self._asked(ecc, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, since_boot),
                # The function's old name, which drivers before 535 have, too.
                "reasons": self._asked(nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
            }
        except nvml.NVMLError as error:  # such as a GPU that has fallen off the bus
            self._trouble = one_line(error)
        else:
            self._samples.append(sample)

    def _asked(self, question: Callable[..., Any], *what: int) -> int | None:
        """NVML's answer; None where the GPU does not support the question."""
        try:
            return int(question(self._handle, *what))
        except self._nvml.NVMLError_NotSupported:
            return None


def _increase(counts: Sequence[int]) -> int | None:
    return max(counts) - min(counts) if counts else None


def judge(watched: Sequence[Watched | Unknown | None], names: Sequence[str], why_no_gpu: str) -> list[Finding]:
    """`watched[rank]`: what was seen of the rank's GPU; None where another rank watched it, or there is none. `names[rank]`: the
    rank's name in messages."""
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
                verdict = "note" if seen.corrected else "ok"
                found.append(Finding(_SUBJECT, verdict, f"{name}: {summary(seen)}", code="gpu-health"))
    return found or [note(_SUBJECT, f"not watched: {why_no_gpu}", code="no-gpu")]


def summary(seen: Watched) -> str:
    """The figures of one GPU in a line."""
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
