# SPDX-License-Identifier: MIT
"""What NVML, or one made up, tells of a GPU's energy."""

from __future__ import annotations

import sys
import time

import pytest
from support.fake_nvml import NotSupported, NVMLError, nvml

from hybrid.core.installation import install
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.devices.nvml import GpuEnergy, power_limit
from hybrid.errors import DeviceUnavailable


def test_millijoules_and_milliwatts_are_joules_and_watts(monkeypatch):
    asked = []
    counter = {"nvmlDeviceGetTotalEnergyConsumption": [5_000, 5_000, 17_500]}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetHandleByUUID=[asked.append], **counter))
    energy = GpuEnergy("GPU-1")
    assert (energy.joules(), energy.joules()) == (5.0, 17.5)
    assert power_limit("GPU-2") == 650.0
    assert asked == ["GPU-1", "GPU-2"]


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (None, f"nvidia-ml-py is not installed: {install('watch')}"),
        (nvml(nvmlInit=[NVMLError("Driver Not Loaded")]), "NVML does not start (NVMLError: Driver Not Loaded)"),
        (nvml(nvmlDeviceGetHandleByUUID=[NVMLError("Not Found")]), "NVML does not tell about GPU-1 (NVMLError: Not Found)"),
        (nvml(nvmlDeviceGetTotalEnergyConsumption=[NotSupported("Not Supported")]),
         "NVML does not tell about GPU-1 (NotSupported: Not Supported)"),
    ],
)  # fmt: skip
def test_a_counter_that_cannot_be_read_says_why_at_once(monkeypatch, module, why):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(DeviceUnavailable) as refused:
        GpuEnergy("GPU-1")
    assert str(refused.value) == why


@pytest.mark.gpu
@pytest.mark.needs("nvml")
def test_a_real_gpu_takes_power_within_reason():
    uuid = usable_gpus()[0].uuid
    energy, limit = GpuEnergy(uuid), power_limit(uuid)
    assert 10 < limit < 3000
    before, began = energy.joules(), time.perf_counter()
    time.sleep(2)
    watts = (energy.joules() - before) / (time.perf_counter() - began)
    assert 1 < watts < 1.5 * limit
