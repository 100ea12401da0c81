# SPDX-License-Identifier: MIT
"""Energy between two moments, by counters that are made up: one rank, several, GPUs that ranks share."""

from __future__ import annotations

from threading import Event, Thread

import pytest
from support.fake_nvml import Library, NVMLError, load_as_nvml
from support.fake_rapl import add, two_processors

from hybrid.core.energy import CPU, GPU, MEMORY
from hybrid.devices.cuda_gpus import Gpu
from hybrid.execution import energy_meter
from hybrid.execution.energy_meter import EnergyMeter
from hybrid.host import rapl
from hybrid.host.threads import Threads
from hybrid.ranks.team import Team
from hybrid.selection.placement import RankPlacement


@pytest.fixture
def counters(tmp_path, monkeypatch):
    """Of two processors: package, memory, package, memory."""
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path)
    return two_processors(tmp_path)


@pytest.fixture
def gpus(monkeypatch):
    """The millijoules that NVML tells of each GPU, by its UUID."""
    millijoules = {"GPU-0": 5_000, "GPU-1": 7_000}
    energy = {"nvmlDeviceGetTotalEnergyConsumption": [lambda uuid: millijoules[uuid]]}
    load_as_nvml(monkeypatch, Library(nvmlDeviceGetHandleByUUID=[lambda uuid: uuid], **energy))
    return millijoules


def placements(*hosts_and_gpus):
    return [
        RankPlacement(rank, host, (0,), Threads(1, "1 core"), Gpu(0, uuid, "H200") if uuid else None)
        for rank, (host, uuid) in enumerate(hosts_and_gpus)
    ]


def test_what_gpus_processors_and_memory_take_meanwhile(counters, gpus):
    meter = EnergyMeter(Team(), placements(("host", "GPU-1")))
    add(counters[0], 90_000_000)  # before: a warm-up
    with meter.reading():
        add(counters[0], 20_000_000)
        add(counters[2], 10_000_000)
        add(counters[3], 4_000_000)
        gpus["GPU-1"] += 250_000
    add(counters[0], 90_000_000)
    energy = meter.total(5)
    assert not meter._counters.is_alive(), "no thread may end while MPI does"
    assert energy.joules == {GPU: 250.0, CPU: 30.0, MEMORY: 4.0}
    assert (energy.why_not, energy.products) == ({}, 5)


def test_the_parts_of_a_product_add_up_without_what_is_between_them(counters):
    meter = EnergyMeter(Team(), placements(("host", "")))
    seconds = 0.0
    for _ in range(3):
        with meter.reading():
            add(counters[0], 2_000_000)
        add(counters[0], 50_000_000)
        assert meter._seconds > seconds
        seconds = meter._seconds
    energy = meter.total(1)
    assert energy.joules == {CPU: 6.0, MEMORY: 0.0}
    assert energy.why_not == {GPU: "no GPU is used"}


def test_without_a_gpu_nvml_is_not_touched(counters, monkeypatch):
    touched = []
    load_as_nvml(monkeypatch, Library(nvmlInit=[lambda: touched.append("init")]))
    for gpu in ("", "GPU-1"):
        meter = EnergyMeter(Team(), placements(("host", gpu)))
        with meter.reading():
            pass
        meter.total(1)
        assert touched == (["init"] if gpu else [])


def test_a_counter_that_goes_round_is_read_often_enough(counters, monkeypatch):
    monkeypatch.setattr(energy_meter, "PERIOD", 0.001)
    read, joules = Event(), rapl.Rapl.joules

    def noted(self):
        found = joules(self)
        read.set()
        return found

    meter = EnergyMeter(Team(), placements(("host", "")))
    with meter.reading():
        monkeypatch.setattr(rapl.Rapl, "joules", noted)
        for _ in range(5):  # twice round in all
            add(counters[0], int(0.4 * 262_143_328_850))
            for _ in range(2):  # the first may have begun to read before
                read.clear()
                assert read.wait(20)
    assert meter.total(1).joules[CPU] == pytest.approx(2 * 262_143.328850)


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (None, "no NVML (libnvidia-ml.so.1) on this machine"),
        (Library(nvmlInit=[NVMLError("Driver Not Loaded")]), "NVML does not start (Driver Not Loaded)"),
        (
            Library(nvmlDeviceGetTotalEnergyConsumption=[1, 1, NVMLError("GPU is lost")]),
            "NVML does not tell about GPU-0 (GPU is lost)",
        ),
    ],
)
def test_without_nvml_the_processors_are_told_all_the_same(counters, monkeypatch, library, why):
    load_as_nvml(monkeypatch, library)
    meter = EnergyMeter(Team(), placements(("host", "GPU-0")))
    with meter.reading():
        add(counters[0], 2_000_000)
    energy = meter.total(1)
    assert energy.joules == {CPU: 2.0, MEMORY: 0.0}
    assert energy.why_not == {GPU: why}


def test_without_rapl_the_folder_and_the_host_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(rapl, "POWERCAP", tmp_path / "powercap")
    meter = EnergyMeter(Team(), placements(("h", "")))
    with meter.reading():
        pass
    energy = meter.total(1)
    why = f"h: {tmp_path / 'powercap'}: it has no RAPL zones of processors"
    assert (energy.joules, energy.why_not) == ({}, {GPU: "no GPU is used", CPU: why, MEMORY: why})


def test_a_counter_that_goes_away_meanwhile_is_not_told(counters):
    meter = EnergyMeter(Team(), placements(("h", "")))
    with meter.reading():
        add(counters[0], 2_000_000)
        counters[2].unlink()
    energy = meter.total(1)
    assert energy.joules == {}
    assert energy.why_not[CPU] == f"h: {counters[2]}: No such file or directory"


def test_an_nvml_that_does_not_answer_is_not_waited_for(counters, monkeypatch):
    monkeypatch.setattr(energy_meter, "_PATIENCE", 0.01)
    never = Event()
    load_as_nvml(monkeypatch, Library(nvmlInit=[never.wait]))
    meter = EnergyMeter(Team(), placements(("h", "GPU-0")))
    with meter.reading():
        never.set()
    meter._counters.join(20)  # it answers after all: too late
    with meter.reading():
        add(counters[0], 1_000_000)
    energy = meter.total(2)
    assert energy.joules == {}
    assert set(energy.why_not.values()) == {"it did not answer within 0.01 s"}


def test_where_no_thread_can_be_started_nothing_is_told(counters, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    meter = EnergyMeter(Team(), placements(("h", "")))
    with meter.reading():
        pass
    assert meter.total(1).why_not[CPU] == "RuntimeError: can't start new thread"


@pytest.mark.mpi
@pytest.mark.parametrize("hosts", [1, 2])
def test_each_gpu_and_each_host_counts_once(counters, gpus, comm, hosts):
    """Each rank has counters of its own here: a second reader would show."""
    where = [(f"host {rank % hosts}", f"GPU-{rank % 2}") for rank in range(comm.size)]
    team = Team(comm)
    meter = EnergyMeter(team, placements(*where))
    with meter.reading():
        add(counters[0], 2_000_000)
        gpus[f"GPU-{team.rank % 2}"] += 3_000
    energy = meter.total(1)
    used = min(comm.size, 2)
    assert energy.joules == {GPU: 3.0 * used, CPU: 2.0 * min(hosts, comm.size), MEMORY: 0.0}
    assert comm.allgather(energy) == [energy] * comm.size


@pytest.mark.mpi
def test_of_some_hosts_only_there_is_no_sum(counters, comm, tmp_path, monkeypatch):
    last = comm.size - 1
    team = Team(comm)
    if team.rank == last:
        monkeypatch.setattr(rapl, "POWERCAP", tmp_path / "none")
    meter = EnergyMeter(team, placements(*[(f"host {rank}", "") for rank in range(comm.size)]))
    with meter.reading():
        add(counters[0], 2_000_000)
    energy = meter.total(1)
    assert energy.joules == {}
    assert energy.why_not[CPU].startswith(f"host {last}: ")
    assert energy.why_not[CPU].endswith("it has no RAPL zones of processors")
