# SPDX-License-Identifier: MIT
"""An mpirun that waits for a node that is gone is ended on its own node: 5 s after a rank that it has started has failed, it is
asked to three times, and then killed; and one that ends, or waits for nobody else, is left alone (docs/failures.md).

Programs stand for the launchers of both MPIs. All of them run at the same time, since each waits for seconds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from support.commands import ROOT

pytestmark = [pytest.mark.launcher, pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")]

# It ends with 7 at so many SIGTERMs (0: at none), or with 3 so many seconds after its rank; what that prints it prints itself.
LAUNCHER = """\
#!{python}
import os, signal, subprocess, sys, time
got, heeded, seconds = 0, int(sys.argv[1]), float(sys.argv[2])
def count(*_):
    global got
    got += 1
    if got == heeded:
        os._exit(7)
signal.signal(signal.SIGTERM, count)
if "SSH" in os.environ:
    folder = os.environ["PMIX_SERVER_TMPDIR"] = os.path.join(os.environ["SSH"], f"ompi.{{os.getpid()}}")
    os.mkdir(folder)
    subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
rank = subprocess.run(sys.argv[3:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
sys.stdout.write("x" * int(os.environ.get("PRINTS", 0)) or rank.stderr)
sys.stdout.flush()
time.sleep(seconds)
os._exit(3)
"""
ON_NODE = "#!{python}\nimport subprocess, sys\nsubprocess.run(sys.argv[1:])\n"
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}
LONG = 300.0

# The launcher's name, what it says to its ranks, how many SIGTERMs it heeds, its seconds after the rank: with which code it ends.
CASES = [
    ("prterun", OPEN_MPI, 1, LONG, 7),
    ("mpirun", OPEN_MPI, 3, LONG, 7),
    ("mpiexec", MPICH, 1, LONG, 7),
    ("mpirun", MPICH, 3, LONG, 7),
    ("prterun", OPEN_MPI, 0, LONG, -9),
    ("mpiexec.hydra", MPICH, 0, LONG, -9),
    ("prterun", OPEN_MPI, 1, 0, 3),  # it ends with its job
    ("mpirun", OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 1, 9, 3),  # all ranks are here: it waits for nobody else
    ("mpirun", MPICH | {"MPI_LOCALNRANKS": "2"}, 1, 9, 3),
    ("prted", OPEN_MPI, 1, 9, 3),  # another node's
    ("prte", OPEN_MPI, 1, 9, 3),  # it may have other jobs
]


@pytest.fixture
def launch(tmp_path):
    """Start a command, of which MPI finds that it is not what the launcher says, under a launcher of this name."""
    started = []

    def one(name: str, says: dict[str, str], heeded: int, seconds: float, **more: str) -> subprocess.Popen[str]:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        words = []
        for program, text in ((name, LAUNCHER), ("hydra_pmi_proxy", ON_NODE)):
            (folder / program).write_text(text.format(python=sys.executable))
            (folder / program).chmod(0o700)
            words.append(str(folder / program))
        above = words if "PMI_RANK" in says else words[:1]
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("HYBRID_", "PMI", "OMPI_", "MPI_", "PRTE"))
        }
        started.append(
            subprocess.Popen(
                [above[0], str(heeded), str(seconds), *above[1:], sys.executable, "-m", "hybrid.matmul", "9", "8", "7"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={**clean, **says, **more},
                start_new_session=True,
            )
        )
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("cases", [CASES[3:10], pytest.param(CASES, marks=pytest.mark.exhaustive)], ids=["some", "all"])
def test_a_launcher_that_does_not_end_with_its_job_is_ended_and_no_other(launch, tmp_path, cases):
    ssh = tmp_path / "ssh"
    ssh.mkdir()
    started = [launch(*case[:4], **({"SSH": str(ssh)} if case[4] == -9 else {})) for case in cases]
    late = launch("mpirun", MPICH, 1, 0, PRINTS="300000")
    ended = [(process.communicate(timeout=120), process.returncode) for process in started]
    for case, ((out, err), code) in zip(cases, ended, strict=True):
        assert code == case[4], (case, out, err)
        assert re.search(r"^hybrid.matmul: .* \[wrong-mpirun\]$", out, re.MULTILINE) or code == -9, (case, out, err)
        # What Hydra passes on no more is printed in its place: here that it was ended, since the rank has said why itself.
        waits = code == -9 and "PMI_RANK" in case[1]
        assert bool(re.fullmatch(r"hybrid: rank 0 on .* \[launcher-waits\]\n", err)) is waits, (case, err)
    assert not [path for path in ssh.iterdir() if re.fullmatch(r"ompi\.\d+", path.name)], (
        "with one that is killed goes its folder"
    )
    # One that waits until somebody reads what it prints, as `less` does, gets its time after that.
    assert late.communicate(timeout=120)[0] == "x" * 300_000
    assert late.returncode == 3
