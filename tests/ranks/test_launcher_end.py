# SPDX-License-Identifier: MIT
"""A launcher that does not end with its job, as where a node is gone. Programs stand for the launchers of both MPIs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hybrid.ranks.launcher import OPEN_MPI, Launch, launched

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

ROOT = Path(__file__).resolve().parents[2]

# It ends itself at so many SIGTERMs (0: at none), or so many seconds after its rank; and passes on nothing of what ranks print.
LAUNCHER = """\
#!{python}
import os, signal, subprocess, sys, time
got, heeded, seconds = 0, int(sys.argv[1]), float(sys.argv[2])
def count(*_):
    global got
    got += 1
    if got == heeded:
        print(f"ended by {{got}}", file=sys.stderr)
        os._exit(7)
signal.signal(signal.SIGTERM, count)
if "SSH" in os.environ:
    folder = os.environ["PMIX_SERVER_TMPDIR"] = os.path.join(os.environ["SSH"], f"ompi.{{os.getpid()}}")
    os.mkdir(folder)
    print(subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid, flush=True)
subprocess.run(sys.argv[3:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
sys.stdout.write("x" * int(os.environ.get("PRINTS", 0)))
sys.stdout.flush()
time.sleep(seconds)
os._exit(3)
"""
ON_NODE = """\
#!{python}
import subprocess, sys
subprocess.run(sys.argv[1:])
"""
RANK = """\
import os, sys
from hybrid.ranks import launcher_end
launcher_end._END_TIME, launcher_end._TERM_TIME, launcher_end._LAST_TIME = 0.5, 0.3, 0.3
end = launcher_end.LauncherEnd(int(os.environ.get("PARENT", os.getppid())))
end.see_to_it()
end.see_to_it()
if len(sys.argv) > 1:
    end.say(sys.argv[1])
"""
OF_OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
OF_MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}


def finished(command, environment):
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Start a rank under a launcher of this name; how that ends."""
    for variable in {*os.environ} & {*OF_OPEN_MPI, *OF_MPICH}:
        monkeypatch.delenv(variable)

    def start(name: str, heeded: int, environment: dict[str, str], *words: str, seconds: float = 60, run=finished):
        chain = []
        for program, text in ((name, LAUNCHER), ("hydra_pmi_proxy", ON_NODE)):
            (tmp_path / program).write_text(text.format(python=sys.executable))
            (tmp_path / program).chmod(0o700)
            chain.append(str(tmp_path / program))
        above = chain if "PMI_RANK" in environment else chain[:1]
        command = [above[0], str(heeded), str(seconds), *above[1:], sys.executable, "-c", RANK, *words]
        given = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
        return run(command, given)

    return start


LINE = "hybrid: rank 0 on n: was killed\n"


@pytest.mark.parametrize(("name", "environment"), [("prterun", OF_OPEN_MPI), ("mpirun", OF_OPEN_MPI), ("mpiexec", OF_MPICH)])
@pytest.mark.parametrize("heeded", [1, 3])
def test_a_launcher_that_goes_on_is_asked_to_end_some_times(launch, name, environment, heeded):
    """Open MPI's leaves its daemons alone at the third."""
    ended = launch(name, heeded, environment, LINE)
    assert (ended.returncode, ended.stderr) == (7, f"ended by {heeded}\n")


def test_one_of_open_mpi_that_does_not_heed_that_is_killed(launch):
    ended = launch("prterun", 0, OF_OPEN_MPI, LINE)
    assert (ended.returncode, ended.stderr) == (-9, ""), "it has passed on the line long since"


def test_with_one_that_is_killed_go_its_folder_and_its_connections_to_nodes(launch, tmp_path):
    ended = launch("prterun", 0, OF_OPEN_MPI | {"SSH": str(tmp_path)}, LINE)
    assert ended.returncode == -9
    ssh, deadline = Path("/proc", ended.stdout.strip(), "comm"), time.monotonic() + 10
    while (is_left(ssh) or [*tmp_path.glob("ompi.*")]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_left(ssh)
    assert not [*tmp_path.glob("ompi.*")]


def is_left(name: Path) -> bool:
    """Whether it runs: one that has ended may stay a zombie where nobody waits for it."""
    try:
        return name.read_text() == "sleep\n" and "State:\tZ" not in (name.parent / "status").read_text()
    except OSError:
        return False


def test_where_hydra_waits_for_the_rest_of_a_message_the_line_is_printed_in_its_place(launch):
    ended = launch("mpirun", 0, OF_MPICH, LINE)
    assert (ended.returncode, ended.stderr) == (-9, LINE)


def test_where_the_rank_itself_has_said_why_that_it_is_ended_is_printed(launch):
    ended = launch("mpirun", 0, OF_MPICH)
    assert ended.returncode == -9
    assert (
        ended.stderr
        == f"hybrid: rank 0 on {os.uname().nodename}: mpirun had not ended 0.5 s after this rank had failed, and was ended\n"
    )


def test_one_that_ends_with_its_job_gets_no_signal(launch):
    ended = launch("prterun", 1, OF_OPEN_MPI, LINE, seconds=0)
    assert (ended.returncode, ended.stderr) == (3, "")


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("mpirun", OF_OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}),  # all ranks are here: it waits for nobody else
        ("prted", OF_OPEN_MPI),  # another node's
        ("prte", OF_OPEN_MPI),  # it may have other jobs
        ("mpirun", OF_MPICH | {"MPI_LOCALNRANKS": "2"}),
        ("mpirun", {}),
    ],
)
def test_others_are_left_alone(launch, name, environment):
    ended = launch(name, 1, environment, LINE, seconds=2)
    assert (ended.returncode, ended.stderr) == (3, "")


@pytest.mark.parametrize(("name", "environment", "printed"), [("prterun", OF_OPEN_MPI, ""), ("mpirun", OF_MPICH, LINE)])
def test_one_that_waits_until_somebody_reads_what_it_prints_gets_its_time_after_that(launch, name, environment, printed):
    """As where `less` shows it. Hydra may throw the line away then."""

    def read_late(command, given):
        with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
            time.sleep(4)
            return *started.communicate(timeout=60), started.returncode

    size = 300_000
    said = launch(name, 1, environment | {"PRINTS": str(size)}, LINE, seconds=0, run=read_late)
    assert said == ("x" * size, printed, 3)


def may_take_descriptors() -> bool:
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    return os.geteuid() == 0 or not yama.exists() or yama.read_text().strip() == "0"


@pytest.mark.skipif(not may_take_descriptors(), reason="no process may take another's descriptors here")
def test_the_line_is_printed_also_where_standard_error_is_a_socket(launch):
    """As in services."""
    reader, writer = socket.socketpair()

    def to_socket(command, given):
        return subprocess.run(command, env=given, stderr=writer, timeout=90, check=False).returncode

    assert launch("mpirun", 0, OF_MPICH, LINE, run=to_socket) == -9
    writer.close()
    with reader:
        assert reader.recv(1000).decode() == LINE


def test_another_process_that_has_got_the_number_of_a_launcher_that_is_gone_is_left_alone(launch):
    def begun(command, given):
        return subprocess.Popen([*command[:3], "true"], env=given, stderr=subprocess.PIPE)

    with launch("prterun", 1, {}, run=begun) as other:
        rank = [sys.executable, "-c", RANK]
        given = {**os.environ, **OF_OPEN_MPI, "PYTHONPATH": str(ROOT), "PARENT": str(other.pid)}
        assert not finished(rank, given).returncode
        time.sleep(2)
        try:
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize(
    ("environment", "on_other_nodes"),
    [
        (OF_OPEN_MPI, True),
        (OF_OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, False),
        (OF_MPICH, True),
        (OF_MPICH | {"MPI_LOCALNRANKS": "2"}, False),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, False),  # it does not say
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}, False),
    ],
)
def test_whether_a_launcher_has_started_ranks_on_other_nodes_its_variables_say(environment, on_other_nodes):
    launch = launched(environment)
    assert launch is not None
    assert launch.on_other_nodes is on_other_nodes


def test_what_open_mpi_says_of_a_rank_is_read():
    said = launched(OF_OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    assert said == Launch(OPEN_MPI, 0, 2, ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), 0, 1)
