# SPDX-License-Identifier: MIT
"""What the doctor finds of the machine's numbers for the plan."""

from __future__ import annotations

import json

import pytest
from support.fake_nvml import Library, load_as_nvml

from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_gpus import Gpu, usable_gpus
from hybrid.diagnostics import machine
from hybrid.diagnostics.bandwidth import Link, Rates
from hybrid.diagnostics.finding import Unknown
from hybrid.diagnostics.probe_process import ProbeResult, run_probe
from hybrid.diagnostics.probes import machine_rates
from hybrid.errors import DeviceUnavailable
from hybrid.plan.machine_model import H200, MachineModel
from hybrid.ranks.team import Team
from hybrid.reporting import jsonl

SMALL = {"sizes": (16, 32), "rows": 64, "widths": (4 << 10, 8 << 10)}
H200S = {  # as the probe would report it of the GPU that the defaults describe
    "stage": "done",
    "link": {"to_gpu": 55e9, "to_host": 55e9},
    "multiply_adds": {"float64": 512 * 55e9, "float32": 512 * 55e9},
    "panels": {str(width): 55e9 * width / (width + 4096) for width in (4096, 8192, 16384, 32768)},
    "multiprocessors": 132,
}


def test_an_h200s_rates_give_an_h200s_model():
    found = machine.interpret(ProbeResult(H200S, ""), [55e9])
    assert found.model == {
        "link_bytes_per_second": 55e9,
        "float64_multiply_adds_per_byte": 512.0,
        "float32_multiply_adds_per_byte": 512.0,
        "panel_row_overhead_bytes": H200.panel_row_overhead_bytes,
        "least_tile_elements": 132 * 128 * 128,
    }


def test_rates_of_bytes_are_taken_where_they_were_measured():
    found = machine.interpret(ProbeResult({**H200S, "byte_multiply_adds": 55e12, "memory": 3.3e12}, ""), [55e9])
    assert (found.model["byte_multiply_adds_per_byte"], found.model["memory_bytes_per_byte"]) == (1000.0, 60.0)
    assert found.rates["memory"] == 3.3e12


@pytest.mark.gpu
def test_rates_of_bytes_are_measured_on_a_gpu():
    gpu, *_ = usable_gpus()
    device = CudaDevice(gpu)
    if gpu.capability < 75:
        pytest.skip("bytes are multiplied from compute capability 7.5 on")
    of_bytes, of_memory = machine_rates.byte_rate(device, 2048), machine_rates.memory_rate(device, 256 << 20)
    assert 1e12 < of_bytes < 1e16
    assert 1e10 < of_memory < 2e13


def test_the_limit_of_the_power_is_the_models_where_it_is_known():
    assert machine.interpret(ProbeResult(H200S, ""), [55e9], 650.0).model["gpu_power_limit_watts"] == 650.0
    assert "gpu_power_limit_watts" not in machine.interpret(ProbeResult(H200S, ""), [55e9]).model


def test_the_slowest_link_counts():
    found = machine.interpret(ProbeResult(H200S, ""), [55e9, 27.5e9])
    assert found.model["float64_multiply_adds_per_byte"] == 1024.0


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (ProbeResult({}, "was killed by SIGSEGV"), "starting: was killed by SIGSEGV"),
        (ProbeResult({**H200S, "stage": "link"}, "took more than 60 s"), "link: took more than 60 s"),
        (ProbeResult({**H200S, "stage": "link", "failed": "planted"}, ""), "link: planted"),
        (ProbeResult({**H200S, "panels": {"4096": 1e9, "8192": 9e9}}, ""), "make no sense: wider rows took no longer"),
        (ProbeResult({**H200S, "link": {"to_gpu": 0.0}}, ""), "make no sense"),
        (ProbeResult({**H200S, "multiply_adds": {"float64": -1.0}}, ""), "float64_multiply_adds_per_byte must be from"),
    ],
    ids=range(6),
)
def test_what_was_not_measured_is_unknown_with_its_reason(told, reason):
    found = machine.interpret(told, [55e9])
    assert isinstance(found, Unknown)
    assert reason in found.reason
    assert machine.as_record(found)["machine_model"] is None
    assert reason in machine.as_record(found)["no_machine_model"]


@pytest.mark.launcher
def test_the_probe_measures_on_a_cpu_that_copies_like_a_gpu():
    told = run_probe("machine_rates", json.dumps({**SMALL, "index": None}))
    assert (told.ended, told.report["stage"]) == ("", "done"), told
    assert set(told.report["multiply_adds"]) == {"float32", "float64"}
    assert set(told.report["panels"]) == {"4096", "8192"}
    assert all(rate > 0 for kind in ("multiply_adds", "panels", "link") for rate in told.report[kind].values())


def test_of_gpus_that_work_the_first_is_measured_and_the_plan_can_read_the_record(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        machine, "run_probe", lambda *of, **more: asked.append(json.loads(of[1])["index"]) or ProbeResult(H200S, "")
    )
    asked_for = []
    load_as_nvml(monkeypatch, Library(nvmlDeviceGetHandleByUUID=[asked_for.append]))
    links = [Link("GPU-1", 0, "host", True, Rates(55e9, 55e9))]
    found = machine.measure(Team(), [Gpu(3, "GPU-1", "H200")], links)
    assert asked == [3]
    path = str(tmp_path / "doctor.jsonl")
    jsonl.write({"command": "doctor"} | machine.as_record(found), path)
    assert MachineModel.read(path).least_tile_elements == 132 * 128 * 128
    assert (MachineModel.read(path).gpu_power_limit_watts, asked_for) == (650.0, ["GPU-1"])
    load_as_nvml(monkeypatch, None)
    assert "gpu_power_limit_watts" not in machine.measure(Team(), [Gpu(3, "GPU-1", "H200")], links).model
    assert asked == [3, 3]
    assert machine.measure(Team(), [None], []) == Unknown("no GPU that works")


@pytest.mark.gpu
def test_a_real_gpu_has_a_model():
    try:
        gpus = usable_gpus()
    except DeviceUnavailable as missing:
        pytest.skip(str(missing))
    found = machine.measure(Team(), gpus[:1], [Link(gpus[0].uuid, 0, "host", True, Rates(1e12, 1e12))])
    assert isinstance(found, machine.Machine), found
    assert MachineModel(**found.model).panel_row_overhead_bytes < 1 << 20
    assert found.model["least_tile_elements"] >= 128 * 128
