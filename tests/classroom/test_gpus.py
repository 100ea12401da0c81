# SPDX-License-Identifier: MIT
"""python -m hybrid.lab gpus: what is told of GPUs by name, and of those that are here."""

from __future__ import annotations

import pytest

from hybrid.classroom import device_query
from hybrid.classroom.gpu_models import MODELS, named
from hybrid.commands import lab
from hybrid.devices import cuda_gpus
from hybrid.devices.cuda_gpus import Gpu
from hybrid.errors import DeviceUnavailable

CORES = {"8800GTX": 128, "GT9600M": 32, "GT330M": 48, "C1060": 240, "M2070": 448, "C2075": 448, "K40c": 2880}
CORES |= {"P100": 3584, "V100": 5120, "A100": 6912, "RTX3090": 10496, "H200": 16896}


def gpus(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["lab", "gpus", *words])
    assert lab.work(lab.parse(["gpus", *words])) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", CORES)
def test_cores_are_those_that_makers_state(name):
    assert named(name).cores == CORES[name]


def test_a_core_multiplies_and_adds_once_a_clock():
    """The rates of all models are those of their cores at clocks that such chips have."""
    for model in MODELS:
        assert 0.7 < model.float32 / (2 * model.cores) < 2.7, model


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla K40c", "K40c"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA H200", "H200"),
        ("GeForce 8800 GTX", "8800GTX"),
    ],
)
def test_a_driver_s_name(device, name):
    assert device_query.of_name(device) == named(name)


def test_a_gpu_that_is_not_in_the_table():
    assert device_query.of_name("NVIDIA B200") is None


def test_the_table_without_a_gpu(monkeypatch, capsys):
    def none():
        raise DeviceUnavailable("no driver")

    monkeypatch.setattr(cuda_gpus, "usable_gpus", none)
    out = gpus(monkeypatch, capsys)
    (line,) = [line for line in out.splitlines() if "K40c" in line]
    assert line.split() == ["K40c", "3.5", "15", "2880", "12", "GB", "288", "4,290", "1,430", "2048", "16", "65536", "48"]
    assert out.endswith("here: no GPU (no driver)\n")


def test_those_that_are_here_are_marked(monkeypatch, capsys):
    there = [Gpu(0, "a", "NVIDIA H200", 90), Gpu(1, "b", "NVIDIA B200", 100)]
    monkeypatch.setattr(cuda_gpus, "usable_gpus", lambda: there)
    out = gpus(monkeypatch, capsys)
    assert [line.split()[1] for line in out.splitlines() if line.startswith(">")] == ["H200"]
    assert out.endswith(
        "here: NVIDIA H200, compute capability 9.0\nhere: NVIDIA B200, compute capability 10.0: not in this table\n"
    )


def test_one_by_name(monkeypatch, capsys):
    out = gpus(monkeypatch, capsys, "k40C")
    assert "15" in out
    assert "2,880, 192 of a multiprocessor" in out
    assert "2048 threads (64 warps), 16 blocks" in out
    assert "64 KiB" in out
