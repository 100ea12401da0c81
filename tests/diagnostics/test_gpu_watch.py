# SPDX-License-Identifier: MIT
"""What is said of a GPU that a made-up NVML tells about."""

from __future__ import annotations

import sys
from itertools import chain, repeat

import pytest
from support.fake_nvml import NotSupported, NVMLError, nvml

from hybrid.core.installation import install
from hybrid.diagnostics.finding import Unknown
from hybrid.diagnostics.gpu_watch import GpuWatch, judge


def watched(monkeypatch, **answers):
    """Two samples: at the start and at the end."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**answers))
    watch = GpuWatch("GPU-1", period=60.0)
    watch.start()
    return watch.stop()


def finding(seen):
    (found,) = judge([seen], ["rank 0 on h, H200 GPU-1"], "none")
    return found


def test_a_healthy_gpu(monkeypatch):
    seen = watched(monkeypatch, nvmlDeviceGetClockInfo=[345, 1980], nvmlDeviceGetCurrentClocksThrottleReasons=[0x01, 0x04])
    assert seen.samples == 2
    assert finding(seen).verdict == "ok"
    assert finding(seen).text == (
        "rank 0 on h, H200 GPU-1: 345 to 1980 MHz, lowered to keep within its power; up to 400 W; up to 60 °C; "
        "0 ECC errors corrected, 0 not"
    )


def ecc_errors(corrected, uncorrected):
    """Totals since the machine started, of which those at the start of the watch are not its own."""
    counts = {3: chain(corrected, repeat(corrected[-1])), 4: chain(uncorrected, repeat(uncorrected[-1]))}
    return [lambda handle, kind, counter: next(counts[kind])]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": [0, 0x48]}, "slowed down: hardware slowdown, too hot (hardware) ("),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": [0x20, 0]}, "slowed down: too hot (software) ("),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": [0x80]}, "slowed down: power brake ("),
        ({"nvmlDeviceGetTemperature": [60, 90]}, "90 °C, and it slows down from 90 °C on ("),
        ({"nvmlDeviceGetTotalEccErrors": ecc_errors([5, 6], [1, 3])}, "2 ECC errors that could not be corrected ("),
        ({"nvmlDeviceGetClockInfo": [1980, NVMLError("GPU is lost")]}, "it stopped answering: NVMLError: GPU is lost ("),
    ],
)
def test_trouble_is_wrong(monkeypatch, answers, said):
    found = finding(watched(monkeypatch, **answers))
    assert found.verdict == "wrong"
    assert found.text.startswith(f"rank 0 on h, H200 GPU-1: {said}")


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ({"nvmlDeviceGetTotalEccErrors": ecc_errors([5, 6], [3, 3])}, "note"),  # corrected
        ({"nvmlDeviceGetTotalEccErrors": ecc_errors([5], [3])}, "ok"),  # of an earlier job
        ({"nvmlDeviceGetTotalEccErrors": [NotSupported()], "nvmlDeviceGetTemperatureThreshold": [NotSupported()]}, "ok"),
    ],
)
def test_what_is_no_trouble(monkeypatch, answers, verdict):
    assert finding(watched(monkeypatch, **answers)).verdict == verdict


def test_samples_are_taken_meanwhile(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    watch = GpuWatch("GPU-1", period=0.001)
    watch.start()
    while len(watch._samples) < 4:
        assert watch._thread.is_alive()
    assert watch.stop().samples >= 5
    assert not watch._thread.is_alive()


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (None, f"nvidia-ml-py is not installed: {install('watch')}"),
        (nvml(nvmlInit=[NVMLError("Driver Not Loaded")]), "NVML does not start (NVMLError: Driver Not Loaded)"),
        (nvml(nvmlDeviceGetHandleByUUID=[NVMLError("Not Found")]), "NVML does not tell about GPU-1 (NVMLError: Not Found)"),
    ],
)
def test_what_cannot_be_watched_says_why(monkeypatch, module, why):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    watch = GpuWatch("GPU-1")
    watch.start()
    seen = watch.stop()
    assert seen == Unknown(why)
    assert (finding(seen).verdict, finding(seen).text) == ("unknown", f"rank 0 on h, H200 GPU-1: not watched: {why}")


def test_without_a_gpu_nothing_is_watched():
    (found,) = judge([None, None], ["rank 0 on h", "rank 1 on h"], "no GPU is used (asked for)")
    assert (found.verdict, found.text) == ("note", "not watched: no GPU is used (asked for)")
