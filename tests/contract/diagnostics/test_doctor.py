# SPDX-License-Identifier: MIT
"""`python -m hybrid.doctor` prints one line a finding (ok, note, unknown, or WRONG with what to do), ends with 1 where something
is wrong, and says the same in JSON. Probes that may crash run in a child process (docs/cluster.md).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, module, own_lines, start, under_a_launcher, without_progress
from support.forked import quickly
from support.selection import exhaustive

import hybrid.testing
from hybrid.errors import CODES

COMMAND = module("hybrid.doctor")
# What a machine that runs the tests may lack.
LACKING = {
    "gpu-failed", "pinned-limit", "gpu-data", "gpu-peers", "threads-crowded", "shared-memory", "no-compiler", "kernel-cache",
}  # fmt: skip
MARKS = {"ok": "ok", "note": "note", "unknown": "unknown", "wrong": "WRONG"}
PAGE = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
SUBJECTS = re.findall(r"^ok {7}(\S+(?: \S+)*?)  ", PAGE, re.MULTILINE)  # of the page's example, in its order
launcher = pytest.mark.launcher


def run(*arguments, command=COMMAND, **options):
    """The doctor, of whose threads, compiler and Slurm nothing is taken over from outside: how it ended, and its findings."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    hidden = ("HYBRID_", "SLURM_", "OMP_", "CXX", "XDG_CACHE_HOME")
    started = quickly if command is COMMAND and not {"PYTHONPATH", "LD_LIBRARY_PATH"} & set(options) else start
    done = started(command, "--json", "-", "--threads", 1, *arguments, hidden=hidden, limit=200, **{"PATH": beside, **options})
    record = json.loads(done.stdout)
    screen = without_progress(done.stderr).splitlines()
    findings = {finding["subject"]: finding for finding in record["findings"]}
    assert done.returncode == (0 if record["ok"] else 1)
    assert record["ok"] == all(finding["verdict"] != "wrong" for finding in record["findings"])
    for finding, line in zip(record["findings"], [line for line in screen if line[:7].strip() in MARKS.values()], strict=True):
        assert line.startswith(f"{MARKS[finding['verdict']]:<7}  {finding['subject']}")
        assert finding["code"] in CODES
        assert (finding["code"] == "ok") == (finding["verdict"] == "ok") == (not line.endswith(f"[{finding['code']}]"))
        assert finding["remedy"] or finding["verdict"] != "wrong"
    return done, record, findings


def verdict_and_code(finding):
    return finding["verdict"], finding["code"]


@launcher
@pytest.mark.parametrize("ranks", exhaustive([0, 2], [0, 1, 2, 3]))
def test_each_subject_of_the_page_is_a_line_and_a_healthy_machine_is_healthy(ranks):
    done, record, findings = run(ranks=ranks)
    assert len(SUBJECTS) == 12
    assert [finding["subject"] for finding in record["findings"]] == SUBJECTS
    assert {finding["code"] for finding in record["findings"] if finding["verdict"] == "wrong"} <= LACKING, done.stderr
    assert findings["launcher"]["verdict"] == findings["mpi"]["verdict"] == findings["slurm"]["verdict"] == "ok"
    assert (record["command"], record["ranks"]) == ("doctor", max(ranks, 1))
    assert [placement["rank"] for placement in record["placements"]] == list(range(max(ranks, 1)))
    assert [placement["threads"] for placement in record["placements"]] == [1] * max(ranks, 1)


def test_the_screen_alone_says_the_same_as_beside_json(tmp_path):
    record = tmp_path / "doctor.jsonl"
    done = [quickly(COMMAND, "--threads", 500, "--json", record) for _ in range(2)]
    lines = record.read_text().splitlines()
    assert len(lines) == 2  # each is appended
    findings = json.loads(lines[1])["findings"]
    *screen, last = done[1].stdout.splitlines()
    assert [(line.split()[0], line.endswith(f"[{finding['code']}]")) for line, finding in zip(screen, findings, strict=True)] == [
        (MARKS[finding["verdict"]], finding["verdict"] != "ok") for finding in findings
    ]
    assert "wrong" in last
    assert done[1].returncode == 1


NO_PROGRAM = {"mpi4py/__init__.py": "raise ImportError('planted')"}
DYING = {"mpi4py/__init__.py": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"}
# What stands for NVIDIA's driver: one whose calls fail, and one that kills its process.
DRIVER = """\
#include <csignal>
extern "C" {
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuInit(unsigned) { %s; return 999; }
int cuDeviceGetCount(int*) { return 999; }
int cuGetErrorName(int, const char** name) { *name = "CUDA_ERROR_PLANTED"; return 0; }
}
"""
SLURM = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}
DYING_MPI = {"PYTHONPATH": "FOLDER/dying:ROOT", "PMI_RANK": "0", "PMI_SIZE": "2"}
# A subject, its verdict and its code; and the environment that makes it so.
MACHINES = {
    "more threads than cores": ("threads", "wrong", "threads-crowded", {"HYBRID_THREADS": "500"}),
    "no compiler": ("compiler", "note", "no-compiler", {"PATH": "/nowhere"}),
    "a compiler that is none": ("compiler", "wrong", "no-compiler", {"CXX": "nonsense"}),
    "a compiler that fails": ("compiler", "wrong", "no-compiler", {"CXX": "false"}),
    "no folder for kernels": ("kernel cache", "note", "kernel-cache", {"XDG_CACHE_HOME": "FOLDER/file", "TMPDIR": "FOLDER"}),
    "another MPI's launcher": ("launcher", "wrong", "wrong-mpirun", {"PMI_RANK": "0", "PMI_SIZE": "2"}),
    "variables of another job": ("launcher", "wrong", "stale-launcher", {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}),
    "no MPI": ("mpi", "unknown", "unknown", {"PYTHONPATH": "FOLDER/none:ROOT"}),
    "MPI that kills": ("launcher", "wrong", "start-failed", DYING_MPI),
    "a driver that fails": ("gpus", "wrong", "gpu-failed", {"LD_LIBRARY_PATH": "FOLDER/fails"}),
    "a driver that kills": ("gpus", "wrong", "gpu-failed", {"LD_LIBRARY_PATH": "FOLDER/kills"}),
    "fewer processes than tasks": ("slurm", "note", "slurm-tasks", SLURM | {"SLURM_NTASKS": "4"}),
    "fewer cores than the task's": ("slurm", "wrong", "slurm-cores", SLURM | {"SLURM_CPUS_PER_TASK": "4000"}),
    "a job with GPUs, a rank without": ("slurm", "wrong", "slurm-gpus", SLURM | {"SLURM_GPUS_ON_NODE": "1"}),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_what_a_machine_lacks_is_a_finding_and_the_other_subjects_are_still_examined(machine, tmp_path):
    if "driver" in machine and (lacks := hybrid.testing.lacking("compiler")):
        pytest.skip(lacks)
    if "GPU" in machine and not hybrid.testing.lacking("gpu"):
        pytest.skip("this machine has a GPU")
    subject, verdict, code, environment = MACHINES[machine]
    prepare(tmp_path, machine)
    environment = {name: value.replace("FOLDER", str(tmp_path)).replace("ROOT", str(ROOT)) for name, value in environment.items()}
    arguments = ["--threads", environment.pop("HYBRID_THREADS")] if "HYBRID_THREADS" in environment else []
    command = [*under_a_launcher(tmp_path), *COMMAND] if machine == "another MPI's launcher" else COMMAND
    _, record, findings = run(*arguments, command=command, **environment)
    assert verdict_and_code(findings[subject]) == (verdict, code), findings[subject]
    assert machine != "a driver that fails" or "CUDA_ERROR_PLANTED" in findings[subject]["text"]
    assert [finding["subject"] for finding in record["findings"]] == SUBJECTS


def prepare(folder, machine):
    """What the environments above name."""
    (folder / "file").write_text("")
    for name, content in (("none", NO_PROGRAM), ("dying", DYING)):
        for path, text in content.items():
            (folder / name / path).parent.mkdir(parents=True)
            (folder / name / path).write_text(text)
    if "driver" in machine:
        library = folder / machine.rpartition(" ")[2] / "libcuda.so.1"
        library.parent.mkdir()
        text = DRIVER % ("raise(SIGSEGV)" if "kills" in machine else "")
        subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", library], input=text, text=True, check=True)


def test_of_processes_that_are_no_ranks_of_one_job_only_the_first_speaks():
    done = quickly(COMMAND, "--threads", 1, SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="2")
    assert (done.returncode, done.stdout, own_lines(done.stderr)) == (0, "", [])


@launcher
@pytest.mark.parametrize("command", exhaustive(["hybrid.accept"], ["hybrid.doctor", "hybrid.hello", "hybrid.accept"]))
def test_ranks_that_were_started_differently_are_named(command):
    both = [*hybrid.testing.mpirun(1), *module(command), ":", "-n", "1", *module(command), "--threads", "7"]
    done = start(both)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = own_lines(done.stderr)
    assert re.search(r"rank 1 .*\[ranks-differ\]$", line)


# --- with a GPU


@pytest.mark.gpu
@launcher
def test_gpus_that_work_are_seen_measured_and_told_by_uuid():
    _, record, findings = run(ranks=2)
    assert findings["gpus"]["verdict"] in ("ok", "note")
    assert all(re.search("GPU-[0-9a-f-]+", findings["gpus"]["text"]) and link["uuid"] for link in record["links"])
    assert findings["gpu links"]["verdict"] in ("ok", "note")
    assert findings["gpu peers"]["verdict"] in ("ok", "note")
    assert "Error" not in findings["gpu peers"]["text"], "a note tells what the GPUs cannot do, not what our code cannot"
    assert record["machine_model"]
