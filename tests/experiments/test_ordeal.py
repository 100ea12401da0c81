# SPDX-License-Identifier: MIT
"""Random faults to random jobs: how a job's end is judged, and what is counted."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from experiments.ordeal import cli, trials
from experiments.ordeal.apart import own_folders, told
from experiments.ordeal.job import Job
from experiments.ordeal.resources import full_disk, full_memory, full_shared_memory
from experiments.ordeal.trials import COMMANDS, LIBRARY, Fault, _is_launchers, _well, faults
from hybrid.errors import HybridError
from hybrid.reporting import jsonl

KILL_WORKER = Fault("SIGKILL", signal.SIGKILL, "worker")
KILL_LAUNCHER = Fault("SIGKILL", signal.SIGKILL, "launcher")
CUT_LINK = Fault("cut link", None, "nobody")
STOP_RANK = Fault("SIGSTOP", signal.SIGSTOP, "rank")


@pytest.mark.parametrize(
    ("fault", "code", "said", "out", "well"),
    [
        (KILL_WORKER, 137, ["hybrid: rank 0 on n, fill: was killed by SIGKILL"], "", True),
        (KILL_WORKER, 137, [], "", False),
        (KILL_WORKER, 137, ["hybrid: one", "hybrid: two"], "", False),
        (KILL_WORKER, 0, [], "check ok", True),
        (KILL_WORKER, 0, [], "", False),
        (KILL_WORKER, 0, ["hybrid: a complaint"], "check ok", False),
        (KILL_WORKER, None, [], "", False),
        (KILL_LAUNCHER, -9, [], "", True),
        (STOP_RANK, 1, [], "", False),
        (STOP_RANK, 143, [], "what was finished", True),
    ],
)
def test_an_end_is_well_if_it_succeeds_or_is_named_once(fault, code, said, out, well):
    assert _well(fault, code, said, out) is well


def test_what_no_supervisor_watches_must_end_and_need_not_be_named_by_us():
    assert _well(KILL_WORKER, 137, [], "", watched=False)
    assert not _well(KILL_WORKER, None, [], "", watched=False)
    assert not _well(KILL_WORKER, 0, [], "", watched=False)


@pytest.mark.parametrize(
    ("fault", "alone", "begun", "its"),
    [
        (CUT_LINK, True, False, True),  # nothing of ours was there yet that could have ended it
        (CUT_LINK, True, True, False),
        (CUT_LINK, False, False, False),
        (STOP_RANK, True, True, True),
        (STOP_RANK, False, True, False),
    ],
)
def test_a_launcher_that_goes_on_alone_is_counted_apart_where_nobody_was_to_end_it(fault, alone, begun, its):
    assert _is_launchers(fault, alone=alone, begun=begun, starts=True, watched=True) is its


def test_there_is_a_launcher_to_hit_only_where_there_is_one():
    command = COMMANDS[0]
    assert {fault.whom for fault in faults(0, command, [])} == {"worker", "supervisor", "rank", "all", "nobody"}
    assert {fault.whom for fault in faults(2, command, [])} == {"worker", "supervisor", "rank", "all", "nobody", "launcher"}
    assert {fault.whom for fault in faults(2, LIBRARY, ["full memory"])} == {"rank", "all", "launcher"}


@pytest.mark.parametrize(
    ("command", "ranks", "names"),
    [
        (COMMANDS[0], 0, {"full /dev/shm"}),
        (COMMANDS[0], 2, {"full /dev/shm", "cut link"}),
        (COMMANDS[2], 1, {"full /dev/shm", "full disk"}),
    ],
)
def test_only_what_a_job_has_is_taken_away(command, ranks, names):
    offered = ["full disk", "full /dev/shm", "cut link"]
    assert {fault.resource for fault in faults(ranks, command, offered)} - {""} == names


WRITES = """
import sys, time
print("up", flush=True)
try:
    while True:
        with open(sys.argv[1] + "/mine", "ab") as file:
            file.write(bytes(1 << 16))
        time.sleep(0.02)
except OSError as error:
    print(error.errno)
"""


@pytest.mark.needs("namespaces")
@pytest.mark.parametrize("resource", [full_disk, full_shared_memory])
def test_a_job_s_own_disk_or_shared_memory_becomes_full_and_no_other_s(resource):
    with tempfile.TemporaryDirectory(prefix="ordeal-") as folder, resource(0, folder, random.Random(1)) as place:
        where = folder if resource is full_disk else "/dev/shm"
        job = Job(["-c", WRITES, where], 0, {}, {}, launch=place.launch)
        while "up" not in job.printed() and not job.ended(0.05):
            pass
        assert not job.ended(0.3)
        place.strike(job)
        assert job.ended(20)
        assert job.said()[0].split() == ["up", "28"], "ENOSPC"
        assert not {"mine", "others"} & {path.name for path in Path(where).iterdir()}


@pytest.mark.needs("namespaces")
def test_jobs_with_folders_of_their_own_see_no_other_s_files_nor_others_theirs():
    if not own_folders():
        pytest.skip("this checkout, or its Python, lies in /tmp, which must not be hidden")
    name = f"mpich_shm_{os.getpid():08x}"  # of this test's process
    of_another = Path(f"/dev/shm/{name}_0")
    try:
        of_another.touch()
        program = f"import os; open('/dev/shm/{name}_1', 'w').close(); print(os.listdir('/dev/shm'), os.listdir('/tmp'))"
        done = subprocess.run([*own_folders(), sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout == f"['{name}_1'] []\n"
        assert not of_another.with_name(f"{name}_1").exists()
    finally:
        of_another.unlink()


def test_what_a_job_leaves_is_found():
    left = Path(f"/dev/shm/hybrid-{'0' * 16}-{os.getpid()}-{'0' * 16}")  # MPICH's might be removed by another test's job
    job = Job(["-c", f"open('{left}', 'w').close()"], 0, {}, {})
    try:
        assert job.ended(20)
        assert str(left) in job.remains()
    finally:
        left.unlink()


@pytest.mark.launcher
def test_a_job_whose_mpi_has_not_started_is_told_from_one_that_has():
    job = Job(["-c", "import time; time.sleep(60)"], 2, {}, {})
    while len(job.rank_processes()) < 2 and not job.ended(0.05):
        pass
    assert job.starts_mpi()
    job.end()
    job = Job(["-m", "hybrid.matmul", "60", "60", "60", "--threads", "1", "--repeat", "1000000"], 2, {}, {})
    while "C (60×60)" not in job.printed() and not job.ended(0.05):
        pass
    assert not job.starts_mpi()
    job.end()


def test_a_job_s_own_memory_becomes_full():
    try:
        with full_memory(0, "", random.Random(1)) as place:
            job = Job(["-c", "print(len(bytearray(600 << 20)))"], 0, {}, {}, launch=place.launch)
            assert job.ended(20)
            assert (job.exit_code, job.said()[0]) == (-signal.SIGKILL, "")
    except OSError as refused:
        pytest.skip(f"needs leave to make control groups: {refused}")


def lines(**differences):
    line = {
        "part": "trial",
        "number": 0,
        "seed": 7,
        "ranks": 2,
        "fault": "SIGKILL",
        "whom": "worker",
        "seconds": 0.5,
        "exit_code": 137,
    }
    line |= {"ended": True, "well": True, "left": [], "apart": False, "launcher_hung": False}
    return [line, line | differences]


@pytest.mark.parametrize(
    ("differences", "row", "code"),
    [
        ({"seconds": 2.5}, "2 0 2.5 s 0 0 0 0 0", 0),
        ({"seconds": 12.5, "exit_code": 0}, "2 0 0.5 s 1 0 0 0 0", 0),
        ({"ended": False, "well": False}, "2 1 0.5 s 0 0 0 0 0", 1),
        ({"ended": False, "well": False, "launcher_hung": True}, "2 0 0.5 s 0 0 0 0 1", 0),
        ({"well": False}, "2 0 0.5 s 0 1 0 0 0", 1),
        ({"left": ["/dev/shm/x"]}, "2 0 0.5 s 0 0 1 0 0", 1),
        ({"left": ["/dev/shm/x"], "apart": True}, "2 0 0.5 s 0 0 0 1 0", 0),
        ({"left": ["process 12"]}, "2 0 0.5 s 0 0 1 0 0", 1),
    ],
)
def test_what_went_wrong_is_counted(differences, row, code):
    results = cli.Results(
        [line | {"machine": {"processor": "p", "cores": 2}, "date": "2026-01-01"} for line in lines(**differences)]
    )
    assert f"all {row}" in [" ".join(printed.split()) for printed in results.printed()]
    assert results.exit_code() == code


def test_the_trials_of_several_files_are_summed(tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("one.jsonl", "two.jsonl")]
    for path, more in zip(paths, ({}, {"well": False}), strict=True):
        for line in lines(**more):
            jsonl.write({"command": "ordeal", "arguments": [], "run": "1", "date": "2026-01-01", **line}, path)
    assert cli.main(["--sum", *paths]) == 1
    assert "all 4 0 0.5 s 0 1 0 0 0" in [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert cli.main(["--sum", paths[0]]) == 0
    (tmp_path / "other.jsonl").write_text("")
    assert cli.main(["--sum", paths[0], str(tmp_path / "other.jsonl")]) == 2
    assert "other.jsonl has no lines of scripts/ordeal.py" in capsys.readouterr().err


def test_a_process_that_cannot_try_jobs_is_told_and_the_others_are_ended():
    with pytest.raises(HybridError, match="a process that tries jobs has ended with 2"):
        list(told([["--tell", "shared", "--ranks", "0"]], [], []))


def test_a_fault_that_no_job_can_have_is_refused(capsys):
    assert cli.main(["--only", "cut link", "--ranks", "1", "--trials", "1"]) == 2
    assert re.search(r"--only cut link: no job can have that here, but .*SIGKILL", capsys.readouterr().err)


@pytest.mark.parametrize("only", ["SIGKILL", "few files"])
def test_one_kind_of_fault_can_be_chosen(monkeypatch, only):
    monkeypatch.setattr(trials, "_struck", lambda job, fault, *rest, **options: {"fault": fault.name, "left": [], "apart": False})
    monkeypatch.setattr(trials, "Job", lambda *given, **options: subprocess.Popen(["true"]))
    monkeypatch.setattr(subprocess.Popen, "end", subprocess.Popen.wait, raising=False)
    usual = dict.fromkeys(COMMANDS)
    for seed in range(5):
        line = trials.trial(0, random.Random(seed), 3, usual, [], own_folders=True, only=only)
        assert line["fault"] == only


@pytest.mark.launcher
@pytest.mark.exhaustive
def test_a_trial_from_start_to_end(tmp_path, capsys):
    path = str(tmp_path / "lines.jsonl")
    assert cli.main(["--trials", "3", "--jobs", "2", "--ranks", "2", "--seed", "5", "--json", path]) == 0
    said = capsys.readouterr().out
    tried = [(line["seed"], line["number"]) for line in jsonl.read(path) if line["part"] == "trial"]
    assert sorted(tried) == [(5, 0), (5, 1), (6, 0)]
    assert cli.main(["--from", path]) == 0
    assert capsys.readouterr().out == said
