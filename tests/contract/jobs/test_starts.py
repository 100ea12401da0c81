# SPDX-License-Identifier: MIT
"""A job is refused before any data moves, on all ranks and in one line, where the ranks are not started together or where MPI has
too little to start with; and where it can be helped MPI starts (docs/failures.md, docs/cluster.md)."""

import resource
import sys

import pytest
from support.commands import own_lines, under_a_launcher
from support.commands import start as started
from support.jobs import may_mount, open_mpi
from support.selection import exhaustive

pytestmark = pytest.mark.launcher

HIDDEN = ("HYBRID_", "PMI", "OMPI_", "MPI_", "SLURM_")  # as of a launcher that has started the tests
PRODUCT = ("-m", "hybrid.matmul", 9, 8, 7)
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}
# What the environment says, and how many processes were started so; of mpirun within a step of srun mpirun's count.
SAID = [(MPICH, 2), (OPEN_MPI, 3), (SLURM, 4), (SLURM | MPICH, 2), (SLURM | OPEN_MPI, 3), ({"PMI_RANK": "1", **SLURM}, 4)]
NOTHING = [
    {"PMI_RANK": "0"},
    {"PMI_RANK": "", "PMI_SIZE": ""},
    {"PMI_RANK": "-1", "PMI_SIZE": "2"},
    {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
]


@pytest.mark.parametrize(("said", "processes"), exhaustive([SAID[0], SAID[3]], SAID))
def test_a_launcher_of_another_mpi_is_refused(tmp_path, said, processes):
    """Each process would take itself for rank 0 of 1, and do all the work."""
    done = started([*under_a_launcher(tmp_path), sys.executable, *map(str, PRODUCT)], hidden=HIDDEN, **said)
    (line,) = own_lines(done.stderr)
    assert line.endswith(" [wrong-mpirun]")
    assert f"started {processes} " in line
    assert done.returncode != 0
    assert done.stdout == ""


@pytest.mark.needs("no launcher above")
@pytest.mark.parametrize(
    "said", [MPICH, OPEN_MPI, SLURM, MPICH | {"PMI_FD": "9", "PMI_HOSTNAME": "here", "MPI_LOCALNRANKS": "2"}]
)
def test_variables_of_a_launcher_that_is_gone_are_refused(said):
    done = started([sys.executable, *map(str, PRODUCT)], hidden=HIDDEN, **said)
    (line,) = own_lines(done.stderr)
    assert line.endswith(" [stale-launcher]")
    assert all(f"{name}={said[name]}" in line for name in [*said][:2])
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.parametrize("said", exhaustive(NOTHING[2:], NOTHING))
def test_what_no_launcher_says_is_no_job(said):
    """As in a batch script, which is no step."""
    done = started([sys.executable, *map(str, PRODUCT)], hidden=HIDDEN, **said)
    assert (done.returncode, own_lines(done.stderr)) == (0, [])


PROGRAM = """
import hybrid
from mpi4py import MPI
try:
    hybrid.multiply([[1.0]], [[1.0]], comm=MPI.COMM_WORLD)
except hybrid.errors.StartError as error:
    print(error.code, isinstance(error, RuntimeError))
"""


def test_a_program_that_another_mpi_s_launcher_started_is_refused_too(tmp_path):
    done = started([*under_a_launcher(tmp_path, "srun"), sys.executable, "-c", PROGRAM], hidden=HIDDEN, **SLURM)
    assert done.stdout == "wrong-mpirun True\n", done.stderr


def test_a_soft_limit_of_open_files_is_raised(start):
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (40, {resource.getrlimit(resource.RLIMIT_NOFILE)[1]}))\n"
    )
    run = 'import runpy, sys; sys.argv = ["m", "9", "8", "7"]; runpy.run_module("hybrid.matmul", run_name="__main__")'
    end = start(["-c", program + run], 2).end()
    assert (end.code, end.lines, end.left) == (0, [], [])


def test_too_little_address_space_is_a_failure_in_one_line(start):
    end = start(["-m", "hybrid.matmul", 6000, 6000, 6000], limits={"RLIMIT_AS": 700 << 20}).end()
    assert (end.code, end.codes, end.left) in [(1, [cause], []) for cause in ("out-of-memory", "host-memory", "threads")]


TELL = """
import hybrid.testing, os, runpy, sys
sys.argv = ["m", "9", "8", "7"]
with hybrid.testing.plant("rank", rank=0, phase="agree", how=lambda: print("UCX_TLS", os.environ.get("UCX_TLS"), flush=True)):
    runpy.run_module("hybrid.matmul", run_name="__main__")
"""
OF_UCX = [
    (2, "1m", "", None),
    (2, "16m", "", "^posix"),
    (4, "36m", "", "^posix"),
    (2, "18m", "tcp", "tcp"),
    (2, "64m", "", "None"),
]


@pytest.mark.skipif(not may_mount(), reason="needs leave to mount a /dev/shm of its own")
@pytest.mark.parametrize(("ranks", "room", "chosen", "transports"), exhaustive(OF_UCX[:2] + OF_UCX[3:4], OF_UCX))
def test_with_little_room_in_shared_memory_ucx_does_without_files_there(start, ranks, room, chosen, transports):
    """Its processes would be killed by SIGSEGV now and then; and with less than MPI itself needs the job is refused."""
    if open_mpi():
        pytest.skip("it is MPICH whose room is known")
    end = start(["-c", TELL], ranks, shared_memory=room, **({"UCX_TLS": chosen} if chosen else {})).end()
    if transports is None:
        assert (end.code, end.codes, end.out) == (1, ["shared-memory"], "")
    else:
        assert (end.code, end.lines) == (0, [])
        assert f"UCX_TLS {transports}\n" in end.out


OTHER_CODE = """
import hybrid.core.installation, runpy, sys
from hybrid.ranks.launcher import rank_by_launcher
if rank_by_launcher() == 1:
    hybrid.core.installation.fingerprint = lambda: 0
sys.argv = ["hybrid.matmul", "50", "40", "30"]
runpy.run_module("hybrid.matmul", run_name="__main__")
"""


def test_a_rank_that_runs_other_code_is_named(start):
    end = start(["-c", OTHER_CODE], 2).end()
    assert (end.code, end.codes, end.left) == (2, ["ranks-differ"], [])
    assert "rank 1 on" in end.lines[0]
