# SPDX-License-Identifier: MIT
"""What NVML, or one made up, tells of a GPU's energy."""

from __future__ import annotations

import subprocess
import time

import pytest
from support.fake_nvml import Library, NotSupported, NVMLError, load_as_nvml

from hybrid.devices import nvml
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.devices.nvml import GpuEnergy, power_limit
from hybrid.emulation.build import c_compiler
from hybrid.errors import DeviceUnavailable


def test_millijoules_and_milliwatts_are_joules_and_watts(monkeypatch):
    asked = []
    counter = {"nvmlDeviceGetTotalEnergyConsumption": [5_000, 5_000, 17_500]}
    load_as_nvml(monkeypatch, Library(nvmlDeviceGetHandleByUUID=[asked.append], **counter))
    energy = GpuEnergy("GPU-1")
    assert (energy.joules(), energy.joules()) == (5.0, 17.5)
    assert power_limit("GPU-2") == 650.0
    assert asked == ["GPU-1", "GPU-2"]


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (None, "no NVML (libnvidia-ml.so.1) on this machine"),
        (Library(nvmlInit=[NVMLError("Driver Not Loaded")]), "NVML does not start (Driver Not Loaded)"),
        (Library(nvmlDeviceGetHandleByUUID=[NVMLError("Not Found")]), "NVML does not tell about GPU-1 (Not Found)"),
        (Library(nvmlDeviceGetTotalEnergyConsumption=[NotSupported("Not Supported")]),
         "NVML does not tell about GPU-1 (Not Supported)"),
    ],
)  # fmt: skip
def test_a_counter_that_cannot_be_read_says_why_at_once(monkeypatch, library, why):
    load_as_nvml(monkeypatch, library)
    with pytest.raises(DeviceUnavailable) as refused:
        GpuEnergy("GPU-1")
    assert str(refused.value) == why


NVML = """
#include <string.h>
static char gpu[8];
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    *handle = gpu;
    return strcmp(uuid, "GPU-1") ? 6 : 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules)
{
    *millijoules = 5000000000123;
    return handle == gpu ? 0 : 999;
}
const char *nvmlErrorString(int code) { return code == 6 ? "Not Found" : "Unknown Error"; }
"""


@pytest.mark.needs("c compiler")
def test_the_functions_are_called_as_c_has_them(monkeypatch, tmp_path):
    source, library = tmp_path / "nvml.c", tmp_path / "libnvml.so"
    source.write_text(NVML)
    subprocess.run([c_compiler(), "-shared", "-fPIC", source, "-o", library], check=True)
    monkeypatch.setattr(nvml, "LIBRARY", str(library))
    assert GpuEnergy("GPU-1").joules() == 5_000_000_000.123
    with pytest.raises(DeviceUnavailable, match=r"^NVML does not tell about GPU-2 \(Not Found\)$"):
        GpuEnergy("GPU-2")
    with pytest.raises(DeviceUnavailable, match=r"^NVML of this driver has no nvmlDeviceGetEnforcedPowerLimit$"):
        power_limit("GPU-1")


@pytest.mark.gpu
def test_a_real_gpu_takes_power_within_reason():
    uuid = usable_gpus()[0].uuid
    energy, limit = GpuEnergy(uuid), power_limit(uuid)
    assert 10 < limit < 3000
    before, began = energy.joules(), time.perf_counter()
    time.sleep(2)
    watts = (energy.joules() - before) / (time.perf_counter() - began)
    assert 1 < watts < 1.5 * limit
