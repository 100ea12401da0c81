# SPDX-License-Identifier: MIT
"""python -m hybrid.doctor as users start it, on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from support.commands import ROOT, start, under_a_launcher, without_progress
from support.doctor import COMMAND, SUBJECTS, found, run
from support.selection import exhaustive

from hybrid.emulation.build import compiler
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

launcher = pytest.mark.launcher


@launcher
@pytest.mark.parametrize("ranks", exhaustive([0, 2], [0, 1, 2]))
def test_a_screen_with_one_line_a_finding(ranks):
    done = run("--threads", 1, ranks=ranks, XDG_CACHE_HOME="")
    findings = found(done.stdout)
    wrong = [subject for subject, (verdict, _) in findings.items() if verdict == "WRONG"]
    assert done.returncode == bool(wrong)
    assert set(wrong) <= {"gpus", "pinned memory", "gpu peers", "compiler", "threads"}, (
        done.stdout
    )  # what a machine may really lack
    assert findings["mpi"][0] == "ok"
    assert re.search(
        r"standard \d\.\d, mpi4py for .+, threads \w+ \(FUNNELED asked for\), large counts (yes|no)", findings["mpi"][1]
    )
    assert findings["blas"][0] in ("ok", "note")
    count = max(ranks, 1)
    assert findings["placement"][1].startswith(f"{count} rank{'s' * (count > 1)} on 1 host: ")


@launcher
def test_more_threads_than_cores_are_wrong_and_it_is_said_how_many_fit():
    done = run("--threads", 500, ranks=2)
    assert done.returncode == 1
    verdict, text = found(done.stdout)["threads"]
    assert verdict == "WRONG"
    assert re.search(r"1000 threads of 2 ranks on [\d.]+ cores? of \S+ → (--threads \d+|start at most)", text)
    assert "is wrong" in done.stdout or "are wrong" in done.stdout


@launcher
@pytest.mark.parametrize("ranks", exhaustive([2], [0, 2]))
def test_json_is_a_line_of_its_own(tmp_path, ranks):
    path = tmp_path / "doctor.jsonl"
    for _ in range(2):
        run("--threads", 1, "--json", path, ranks=ranks)
    entries = list(jsonl.read(str(path)))
    assert len(entries) == 2
    entry = entries[1]
    assert (entry["command"], entry["ranks"]) == ("doctor", max(ranks, 1))
    assert [finding["subject"] for finding in entry["findings"]] == SUBJECTS
    assert entry["ok"] == all(finding["verdict"] != "wrong" for finding in entry["findings"])
    assert [placement["rank"] for placement in entry["placements"]] == list(range(max(ranks, 1)))
    assert {type(entry[name]) for name in ("links", "peer_copies")} == {list}


def test_json_on_standard_output_is_all_there_is():
    done = run("--threads", 1, "--json", "-")
    assert json.loads(done.stdout)["command"] == "doctor"
    found(without_progress(done.stderr))


@launcher
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--jsn"], "unknown option --jsn: did you mean --json?"),
        (["8"], "unrecognized arguments: 8"),
        (["--threads", "x"], "'x' is not a whole number"),
        (["--json", "/nowhere/at/all"], "there is no folder /nowhere/at"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(arguments, said):
    for ranks in (0, 2):
        done = run(*arguments, ranks=ranks)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("hybrid")]
        assert said in line


@launcher
@pytest.mark.parametrize("rank", exhaustive(["PMI_RANK"], ["SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK"]))
def test_a_launcher_of_another_mpi_is_a_finding_and_what_fits_is_said(rank, tmp_path):
    """Or MPI does not even start with what such a launcher leaves in the environment, and ends the process."""
    size = {"SLURM_PROCID": "SLURM_STEP_NUM_TASKS", "PMI_RANK": "PMI_SIZE", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE"}[rank]
    done = start([*under_a_launcher(tmp_path), *COMMAND], "--threads", 1, **{size: "2", rank: "0"})
    assert done.returncode == 1
    verdict, text = found(done.stdout)["launcher"]
    assert verdict == "WRONG"
    assert re.search("started 2 processes|when it started MPI rank 0", text), text
    assert re.search("→ try (srun --mpi=|/|the mpirun)", text), text
    assert re.search("mpi4py uses|sees 1: they belong to different MPIs", text), text


def test_of_processes_that_are_no_ranks_of_one_job_only_the_first_speaks():
    done = run("--threads", 1, SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="2")
    assert (done.returncode, done.stdout) == (0, "")
    assert "hybrid" not in without_progress(done.stderr)


DYING = """\
import os, signal, sys
import hybrid.commands.cli, hybrid.commands.doctor
def start(**_):
    os.kill(os.getpid(), signal.SIGKILL)
hybrid.commands.cli.start_world = start
sys.exit(hybrid.commands.doctor.main())
"""


def test_a_start_of_mpi_that_kills_the_process_is_a_finding(tmp_path):
    program = tmp_path / "dying.py"
    program.write_text(DYING)
    command = [sys.executable, str(program)]
    done = run("--threads", 1, command=command, PYTHONPATH=str(ROOT), SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="2")
    assert done.returncode == 1
    assert "when it started MPI rank 0 was killed by SIGKILL" in found(done.stdout)["launcher"][1]


def test_an_mpi_that_is_not_there_is_a_finding(tmp_path):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py/__init__.py").write_text("raise ImportError('planted')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    verdict, text = found(run("--threads", 1, PYTHONPATH=path).stdout)["mpi"]
    assert (verdict, "planted" in text) == ("unknown", True)
    done = run("--threads", 1, PYTHONPATH=path, PMI_RANK="0", PMI_SIZE="2")
    assert done.returncode == 1
    assert found(done.stdout)["launcher"][0] == "WRONG"


def test_no_compiler_is_a_note_and_a_wrong_one_is_wrong(tmp_path):
    (tmp_path / "file").write_text("")
    nothing = run("--threads", 1, PATH=str(tmp_path))
    verdict, text = found(nothing.stdout)["compiler"]
    assert verdict in ("note", "ok")  # ok where a GPU works
    assert "apt-get install g++" in text
    for wrong, said in (("nonsense", "CXX=nonsense is not a program"), ("true", ""), ("false", "ends with 1")):
        done = run("--threads", 1, CXX=wrong)
        verdict, text = found(done.stdout)["compiler"]
        assert (verdict == "WRONG", done.returncode == 1) == ((True, True) if said else (False, False)), text
        assert said in text


def test_a_cache_that_cannot_be_written_to_is_noted(tmp_path):
    (tmp_path / "file").write_text("")
    done = run("--threads", 1, XDG_CACHE_HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path))
    verdict, text = found(done.stdout)["kernel cache"]
    assert verdict == "note"
    assert text.startswith(f"compiled kernels are kept in {tmp_path}/hybrid-runner-")
    assert "HYBRID_CACHE names a better place" in text


DRIVER = """\
extern "C" {
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuInit(unsigned) { return 999; }
int cuDeviceGetCount(int*) { return 999; }
int cuGetErrorName(int, const char** name) { *name = "CUDA_ERROR_PLANTED"; return 0; }
}
"""


@pytest.mark.needs("compiler")
def test_a_driver_that_fails_is_wrong(tmp_path):
    build = [compiler(), "-shared", "-fPIC", "-x", "c++", "-", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(build, input=DRIVER, text=True, check=True)
    done = run("--threads", 1, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 1
    verdict, text = found(done.stdout)["gpus"]
    assert verdict == "WRONG"
    assert text.startswith("driver for CUDA 13.0 fails: CUDA_ERROR_PLANTED → ")


def test_what_settles_the_threads_does_not_load_numpy():
    program = (
        "import sys, hybrid.commands.doctor, hybrid.diagnostics.examination, hybrid.selection.inventory\n"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT).returncode == 0


@launcher
def test_ranks_started_differently_are_named():
    command = [*mpirun(1), *COMMAND, ":", "-n", "1", *COMMAND, "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "rank 1 asks for threads 1" in done.stderr


@pytest.mark.gpu
@launcher
def test_nothing_is_wrong_with_gpus_that_work(real_gpus):
    done = run("--threads", 1, ranks=2)
    findings = found(done.stdout)
    assert findings["gpus"][0] in ("ok", "note")
    assert real_gpus[0].uuid in findings["gpus"][1]
    assert re.search("^(yes|no) ?[:(]", findings["cuda-aware MPI"][1])
    assert "GB/s" in findings["gpu links"][1]
    assert findings["gpu peers"][0] in ("ok", "note")
