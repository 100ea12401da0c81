# SPDX-License-Identifier: MIT
"""The doctor's probes: processes that may die, and what is known when they did."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, successful
from support.doctor import SAME, THREE, found, run
from support.selection import exhaustive

from hybrid.devices.cuda_gpus import Gpu
from hybrid.diagnostics import bandwidth, cuda_aware_mpi, gpu_peers, gpus, host_links
from hybrid.diagnostics.probe_process import ProbeResult, run_command, run_probe
from hybrid.diagnostics.probes import cuda_aware
from hybrid.ranks.team import Team
from hybrid.reporting import jsonl

PROGRAMS = Path(__file__).parent / "programs"

launcher = pytest.mark.launcher

PROBE = """\
import sys
from hybrid.diagnostics.probes.protocol import limit_process, report
limit_process({limit})
report(first=1)
print("a library's word", end="", flush=True)
report(second=[2])
{deed}
"""


@pytest.mark.parametrize(
    ("deed", "ended"),
    [
        ("", ""),
        ("import os; os.kill(os.getpid(), 11)", "was killed by SIGSEGV"),
        ("sys.exit(3)", "ended with 3"),
        ("raise ValueError('planted')", "ended with 1: ValueError: planted"),
        ("import time; time.sleep(60)", "took more than 1 s"),
        pytest.param(  # it does not even end itself
            "import signal, time; signal.alarm(0); time.sleep(60)", "took more than 1 s", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_what_a_process_said_stays_however_it_ends(deed, ended):
    limit = 1 if "sleep" in deed else 30
    told = run_command([sys.executable, "-c", PROBE.format(limit=limit, deed=deed)], limit)
    assert told == ProbeResult({"first": 1, "second": [2]}, ended)


MOVING = """\
import sys
sys.path.insert(0, {folder!r})
from address import Address
from hybrid.diagnostics.probes import cuda_aware
from hybrid.diagnostics.probes.protocol import limit_process
import numpy
limit_process(30)
kept = []
def make(pattern):
    into = numpy.zeros_like(pattern)
    kept.extend((pattern, into))
    source, target = ({source}), ({target})
    return Address(source, pattern.size), Address(target, pattern.size), lambda: into
cuda_aware.send_to_self(make)
"""


@launcher
@pytest.mark.parametrize("ranks", [0, 2])
def test_mpi_is_tried_in_a_process_that_dies_of_an_address_it_cannot_read(tmp_path, ranks):
    """Alone, and started by a rank: it must not take itself for one."""
    asking = tmp_path / "asking.py"
    lines = [
        "import sys",
        "from hybrid.diagnostics import cuda_aware_mpi as aware",
        "from hybrid.diagnostics.probe_process import run_command",
    ]
    if ranks:
        lines += ["from mpi4py import MPI", "if MPI.COMM_WORLD.rank: MPI.COMM_WORLD.Barrier(); sys.exit()"]
    for source, target in (("pattern.ctypes.data", "into.ctypes.data"), ("1 << 40", "1 << 41")):
        program = MOVING.format(folder=str(PROGRAMS), source=source, target=target)
        lines.append(f"print(aware.interpret(run_command([sys.executable, '-c', {program!r}], 30)), flush=True)")
    if ranks:
        lines.append("MPI.COMM_WORLD.Barrier()")
    asking.write_text("\n".join(lines))
    done = run(ranks=ranks, command=[sys.executable, str(asking)], PYTHONPATH=str(ROOT))
    right, wrong = done.stdout.splitlines()
    assert right == "yes"
    assert re.fullmatch("the process that tried (was killed by SIG(SEGV|BUS|ABRT)|ended with .+)", wrong)


def test_probes_of_gpus_are_found_and_run():
    """On a machine without a GPU they fail, but not because there is no such probe."""
    gpu = Gpu(99, "GPU-99", "none")
    assert "hybrid.diagnostics" not in gpus.try_out(gpu).trouble
    alone = bandwidth.measure(Team(), [gpu])
    assert alone.failure is None or "hybrid.diagnostics" not in alone.failure.text
    task = {"rank": 0, "nodes": [[0]], "measuring": [[0]], "uuids": ["a"], "size": 1 << 20, "index": None}
    proxy = run_probe("all_ranks", json.dumps(task))
    assert (proxy.report["stage"], proxy.ended) == ("links", "ended with 1: the rank has ended")


def test_looking_for_gpus_comes_to_a_word_on_any_machine():
    sight = gpus.inspect()
    assert isinstance(sight, gpus.VisibleGpus)
    assert sight.usable or sight.absent or sight.trouble


def proxies(*arguments, ranks=3):
    program = [sys.executable, str(PROGRAMS / "proxies_on_cpu.py")]
    done = successful(run(*arguments, command=program, ranks=ranks, PYTHONPATH=str(ROOT)))
    said = json.loads(done.stdout)
    rates = [
        bandwidth.Link(
            **{
                **link,
                "alone": bandwidth.Rates(**link["alone"]),
                "together": bandwidth.Rates(**link["together"]) if link["together"] else None,
            }
        )
        for link in said["links"]
    ]
    failure = bandwidth.Failure(**said["failure"]) if said["failure"] else None
    copies = tuple(bandwidth.PeerCopy(**copy) for copy in said["peer_copies"])
    return bandwidth.Measurements(tuple(rates), copies, failure, tuple(map(tuple, said["nodes"])), said["one_process"])


@launcher
@pytest.mark.parametrize(
    ("ranks_per_node", "without", "measured", "together", "passages"),
    exhaustive(
        [(2, [], 3, 2, 2), (0, [1], 2, 2, 2), (0, [0, 1, 2], 0, 0, 0)],
        [(0, [], 3, 3, 6), (2, [], 3, 2, 2), (0, [1], 2, 2, 2), (1, [], 3, 0, 0), (2, [0], 2, 0, 0), (0, [0, 1, 2], 0, 0, 0)],
    ),
)
def test_proxies_of_ranks_measure_and_fetch(ranks_per_node, without, measured, together, passages):
    """On a CPU that copies like a GPU."""
    moved = proxies(ranks_per_node, without, "")
    assert moved.failure is None
    assert len(moved.links) == measured
    assert len([link for link in moved.links if link.together]) == together
    assert len({(passage.source, passage.target) for passage in moved.peer_copies}) == len(moved.peer_copies) == passages
    assert host_links.judge(moved).verdict in ("ok", "note")
    peer = gpu_peers.judge(moved, THREE, [SAME] * 3)
    assert peer.verdict in ("ok", "note")
    assert ("not tried" in peer.text) == (not passages)


@launcher
def test_the_whole_way_with_gpus_that_a_cpu_stands_for(tmp_path):
    path = tmp_path / "doctor.jsonl"
    program = [sys.executable, str(PROGRAMS / "doctor_on_cpu.py")]
    done = run("--threads", 1, "--json", path, command=program, ranks=2, PYTHONPATH=str(ROOT))
    findings = found(done.stdout)
    assert re.search(r"^2 GPUs, .+ GB/s", findings["gpu links"][1])
    assert "the transport peers works" in findings["gpu peers"][1]
    assert findings["pinned memory"][1].startswith("256.0 MiB pinned for every rank's GPU")
    (entry,) = jsonl.read(str(path))
    assert [(one["rank"], one["uuid"], one["pinned"]) for one in entry["links"]] == [(0, "GPU-0", True), (1, "GPU-1", True)]
    assert all(one["alone"]["to_gpu"] > 0 and one["together"]["to_host"] > 0 for one in entry["links"])
    assert {(one["source"], one["target"], one["correct"]) for one in entry["peer_copies"]} == {
        ("GPU-0", "GPU-1", True),
        ("GPU-1", "GPU-0", True),
    }


@launcher
@pytest.mark.parametrize(
    ("fault", "died", "verdict", "said"),
    [
        ("kill", True, "wrong", "rank 1 on .+: was killed by SIGSEGV, while .+ → --transport host"),
        pytest.param("sleep", True, "wrong", "took more than 8 s, while .+ → --transport host", marks=pytest.mark.exhaustive),
        ("wrong data", False, "wrong", "rank 1 on .+ is not what lies there.+ → switch off ACS"),
        (
            "wrong fetch",
            False,
            "wrong",
            "rank 1 on .+ is not what lies there; the transport peers is used.+ACS",
        ),
        ("refuse", False, "note", "rank 1 on .+: planted; the transport host is used: each of 3 ranks loads all of B"),
        ("link", False, "unknown", "not tried, since the links could not be measured"),
    ],
)
def test_a_proxy_that_fails_ends_the_others_and_is_named(fault, died, verdict, said):
    moved = proxies(0, [], fault)
    assert moved.failure.died == died
    finding = gpu_peers.judge(moved, THREE, [SAME] * 3)
    assert finding.verdict == verdict
    assert re.search(said, f"{finding.text} → {finding.remedy}")
    about_links = host_links.judge(moved)
    if fault == "link":
        assert (about_links.verdict, "ValueError: planted" in about_links.text) == ("unknown", True)
    else:  # what was measured before stays
        assert about_links.verdict in ("ok", "note")


# --- with a GPU


@pytest.mark.gpu
def test_a_real_gpu_is_seen_and_works(real_gpus):
    sight = gpus.inspect()
    assert sight.usable == tuple(real_gpus)
    assert gpus.try_out(real_gpus[0]) == gpus.Trial(True, "", 256 << 20, "")


@pytest.mark.gpu
def test_one_process_measures_all_gpus_that_it_sees(real_gpus):
    moved = bandwidth.collect([run_probe("gpu_pairs", str(bandwidth.SIZE))], ["here"], ((0,),), one_process=True)
    assert moved.failure is None
    assert [link.uuid for link in moved.links] == [gpu.uuid for gpu in real_gpus]
    assert all(link.pinned for link in moved.links)
    assert len(moved.peer_copies) == len(real_gpus) * (len(real_gpus) - 1)
    assert all(passage.correct for passage in moved.peer_copies)
    assert host_links.judge(moved).verdict in ("ok", "note")
    assert gpu_peers.judge(moved, real_gpus[:1], []).verdict in ("ok", "note")


@pytest.mark.gpu
@pytest.mark.mpi
def test_ranks_measure_their_gpus_together(comm, real_gpus):
    team = Team(comm)
    sights = comm.allgather(gpus.VisibleGpus(tuple(real_gpus), None))
    chosen = gpus.choose(sights)
    moved = bandwidth.measure(team, chosen)
    around = comm.allgather(bandwidth.isolation(real_gpus))
    assert {link.uuid for link in moved.links} == {gpu.uuid for gpu in chosen}
    assert host_links.judge(moved).verdict in ("ok", "note")
    assert gpu_peers.judge(moved, chosen, around).verdict in ("ok", "note")
    team.free()


@pytest.mark.gpu
@launcher
def test_mpi_is_tried_with_a_real_gpu(real_gpus):
    told = run_probe("cuda_aware", "0")
    assert told.report["stage"] == "moving"
    assert isinstance(cuda_aware_mpi.interpret(told), str)
    assert cuda_aware.SIZES[0] < cuda_aware.SIZES[1]
