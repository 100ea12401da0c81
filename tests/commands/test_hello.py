# SPDX-License-Identifier: MIT
"""python -m hybrid.hello as users start it, and what it is made of."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
from collections import Counter

import pytest
from support.commands import ROOT, module, own_lines, start, under_a_launcher
from support.selection import exhaustive

from hybrid.commands import hello
from hybrid.devices import greeting
from hybrid.errors import HybridError, StartError
from hybrid.ranks.launcher import mpirun
from hybrid.ranks.mpi_library import Library

COMMAND = module("hybrid.hello")

launcher = pytest.mark.launcher


needs_compiler = pytest.mark.needs("compiler")


def run(*arguments, command=COMMAND, **options):
    """With the CPU for a GPU."""
    return start(command, *arguments, **{"CUDA_VISIBLE_DEVICES": "", **options})


def expected(ranks, threads, blocks=3, block=4):
    """All lines but the time."""
    lines = [f"Greetings from CPU thread {t}/{threads} of process {p}/{ranks}!" for p in range(ranks) for t in range(threads)]
    lines += [
        f"Hello from block {b}, thread {t} of the GPU, called by process {p}"
        for p in range(ranks)
        for b in range(blocks)
        for t in range(block)
    ]
    return Counter(lines)


@needs_compiler
@launcher
@pytest.mark.parametrize("ranks", exhaustive([0, 3], [0, 1, 2, 3, 4]))
def test_every_thread_of_every_rank_greets_once_and_then_the_time_comes(ranks):
    done = run("--threads", 2, ranks=ranks)
    assert done.returncode == 0, done.stderr
    *lines, time = done.stdout.splitlines()
    assert Counter(lines) == expected(max(ranks, 1), 2)
    assert re.fullmatch(r"Time: \d+\.\d{6}", time)
    assert len(lines) + 1 == max(ranks, 1) * (2 + 12) + 1


@needs_compiler
@launcher
def test_the_lines_of_a_rank_stay_together():
    done = run("--threads", 3, "--blocks", 50, "--threads-per-block", 40, ranks=3)
    lines = done.stdout.splitlines()[:-1]
    of = [int(re.search(r"process (\d)", line)[1]) for line in lines]
    assert of == sorted(of)
    assert Counter(lines) == expected(3, 3, 50, 40)


@needs_compiler
@launcher
def test_unordered_lines_are_as_many():
    done = run("--unordered", "--where", "--threads", 3, ranks=3)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len([line for line in lines if re.fullmatch(r"Time: \d+\.\d{6}", line)]) == 1
    greetings = [line for line in lines if not line.startswith(("Time: ", "Process "))]
    assert Counter(greetings) == expected(3, 3, 3, 4)
    assert len(lines) == len(greetings) + 4


@needs_compiler
@pytest.mark.parametrize(("blocks", "block"), [(1, 1), (7, 33), (1, 1024), (64, 1024)])
def test_any_blocks_and_threads_up_to_the_most(blocks, block):
    done = run("--threads", 1, "--blocks", blocks, "--threads-per-block", block)
    assert done.returncode == 0, done.stderr
    assert Counter(done.stdout.splitlines()[:-1]) == expected(1, 1, blocks, block)


@needs_compiler
@launcher
def test_thread_level_and_emulation_are_said_beside_the_counted_lines():
    first, second = own_lines(run("--threads", 1, ranks=2).stderr)
    assert re.fullmatch(
        r"hybrid.hello: MPI thread level FUNNELED asked for, (FUNNELED|SERIALIZED|MULTIPLE) provided \(.+\)", first
    )
    assert re.match(r"hybrid.hello: the GPU's greetings come from the CPU, emulated: .*(driver|CuPy|GPU)", second)


@needs_compiler
def test_alone_there_is_no_thread_level():
    assert own_lines(run().stderr)[0] == "hybrid.hello: started alone: no MPI, so no thread level"


@needs_compiler
@launcher
def test_where_adds_a_line_a_rank():
    done = run("--where", "--threads", 2, ranks=2)
    lines = done.stdout.splitlines()
    where = [line for line in lines if line.startswith("Process ")]
    assert len(lines) == 2 * (1 + 2 + 12) + 1
    for rank, line in enumerate(where):
        assert re.fullmatch(rf"Process {rank}/2 is on \S+, cores [\d,-]+, no GPU \(emulated\)", line)


@launcher
def test_the_cpu_alone_greets_without_a_kernel():
    done = run("--device", "cpu", "--threads", 2, ranks=2)
    assert done.returncode == 0, done.stderr
    assert Counter(done.stdout.splitlines()[:-1]) == expected(2, 2, 0)
    assert len(own_lines(done.stderr)) == 1


def test_threads_are_taken_from_the_environment_as_everywhere():
    assert "of process 0/1" in run("--device", "cpu", OMP_NUM_THREADS="5").stdout
    assert Counter(run("--device", "cpu", OMP_NUM_THREADS="5").stdout.splitlines()[:-1]) == expected(1, 5, 0)
    assert Counter(run("--device", "cpu", SLURM_CPUS_PER_TASK="3").stdout.splitlines()[:-1]) == expected(1, 3, 0)


WRONG = [
    (["--blocks", "0"], "0 is too small: at least 1"),
    (["--blocks", "-3"], "too small|expected one argument"),
    (["--blocks", "1000000000"], "more than 65536 lines a rank"),
    (["--blocks", "65", "--threads-per-block", "1024"], "more than 65536 lines a rank"),
    (["--blocks", "x"], "'x' is not a whole number"),
    (["--threads-per-block", "1025"], "a block has at most 1024 threads"),
    (["--threads-per-block", "0"], "too small"),
    (["--threads", "-1"], "too small|expected one argument"),
    (["--threads", "1000000"], "1000000 CPU threads a rank are too many"),
    (["--block", "3"], "unknown option --block: did you mean --blocks?"),
    (["8"], "unrecognized arguments: 8"),
    (["--device", "gpu"], "unknown device 'gpu'"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_wrong_usage_is_one_line_and_exit_2(arguments, said):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = own_lines(done.stderr)
    assert re.search(said.replace("?", r"\?"), line), line


@launcher
@pytest.mark.parametrize("arguments", [["--blocks", "0"], ["--threads", "5000"]])
def test_wrong_usage_under_mpirun_is_said_once(arguments):
    done = run(*arguments, ranks=2)
    assert (done.returncode, done.stdout) == (2, "")
    assert len([line for line in own_lines(done.stderr) if "thread level" not in line]) == 1


@launcher
@pytest.mark.parametrize("second", [["--blocks", "2"], ["--where"], ["--blocks", "0"]])
def test_ranks_started_differently_are_named(second):
    command = [*mpirun(1), *COMMAND, ":", "-n", "1", *COMMAND, *second]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = own_lines(done.stderr)
    assert "rank 1" in line


@launcher
@pytest.mark.parametrize("ranks", [0, 2])
def test_without_a_compiler_the_threads_still_greet_and_it_is_said_what_to_install(ranks, tmp_path):
    done = run("--threads", 2, ranks=ranks, PATH=str(tmp_path), CXX="")
    assert done.returncode != 0
    assert Counter(done.stdout.splitlines()[:-1]) == expected(max(ranks, 1), 2, 0)
    assert done.stdout.splitlines()[-1].startswith("Time: ")
    assert re.search(r"hybrid.hello: no greetings from a GPU: .+apt-get install g\+\+", done.stderr)


def test_emulation_that_was_asked_for_and_cannot_be_is_a_failure(tmp_path):
    done = run("--device", "emulate", PATH=str(tmp_path), CXX="")
    assert (done.returncode, done.stdout) == (1, "")
    assert "apt-get install g++" in own_lines(done.stderr)[0]


@needs_compiler
@pytest.mark.parametrize("ranks", exhaustive([0], [0, 2]))
def test_where_nothing_can_be_kept_in_the_cache_the_folder_for_temporary_files_is_taken_and_said(tmp_path, ranks):
    (tmp_path / "file").write_text("")
    done = run("--threads", 1, ranks=ranks, XDG_CACHE_HOME="", HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path))
    assert done.returncode == 0
    (line,) = [line for line in own_lines(done.stderr) if "cache" in line]
    folder = tmp_path / f"hybrid-runner-{os.geteuid()}" / "emulation"
    assert line.startswith(f"hybrid.hello: compiled kernels are kept in {folder}: {tmp_path}/file/.cache cannot be used")
    assert list(folder.glob("*.so"))
    assert folder.stat().st_mode & 0o777 == 0o700


@needs_compiler
def test_a_cache_of_another_user_is_not_used_and_named(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "hybrid-runner").symlink_to("mine")
    (tmp_path / f"hybrid-runner-{os.geteuid()}").symlink_to("mine")
    done = run("--threads", 1, XDG_CACHE_HOME=str(tmp_path), TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert Counter(done.stdout.splitlines()[:-1]) == expected(1, 1, 0)
    assert re.search("is a link.*set HYBRID_CACHE", done.stderr)
    assert not list((tmp_path / "mine").iterdir())


def test_a_gpu_that_was_asked_for_and_is_not_there_is_a_failure():
    done = run("--device", "cuda")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search("driver|CuPy|GPU", own_lines(done.stderr)[-1])


@needs_compiler
def test_closed_streams():
    for closing in (">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"):
        done = subprocess.run(["bash", "-c", f'"$@" {closing}', "bash", *COMMAND], timeout=60, check=False)
        assert done.returncode == 0, closing


@launcher
def test_a_launcher_of_another_mpi_is_refused(tmp_path):
    done = start([*under_a_launcher(tmp_path, "srun"), *COMMAND], SLURM_STEP_NUM_TASKS="2", SLURM_PROCID="0")
    assert done.returncode != 0
    assert done.stdout == ""
    assert "started 2 processes" in done.stderr


@launcher
def test_help_comes_once_under_mpirun():
    assert run("--help", ranks=2).stdout == run("--help").stdout


FAULTY = """\
import os, signal, sys
from hybrid.commands import hello
greet = hello.greet
def faulty(process, *others):
    if process == 1:
        {deed}
    return greet(process, *others)
hello.greet = faulty
sys.exit(hello.main())
"""


@launcher
@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("raise ValueError('planted')", "ValueError: planted"),
        ("sys.exit(0)", r"left by sys.exit\(0\)"),
    ],
)
def test_a_rank_that_fails_ends_the_job_with_one_line(tmp_path, deed, said):
    program = tmp_path / "faulty.py"
    program.write_text(FAULTY.format(deed=deed))
    done = run("--device", "cpu", ranks=3, command=[sys.executable, str(program)], PYTHONPATH=str(ROOT))
    assert done.returncode != 0
    assert "Time" not in done.stdout
    line = own_lines(done.stderr)[-1]
    assert re.search(rf"rank 1\b.*, greet: .*{said}", line), line


def test_the_command_loads_no_numpy():
    """Its BLAS would have started its threads before they are settled."""
    program = "import sys, hybrid.hello, hybrid.devices.greeting; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT).returncode == 0


# --- what it is made of


class Printing:
    """Stands for a kernel: prints these lines by C's means."""

    def __init__(self, *lines):
        self.lines = lines
        self.finished = False

    def launch(self, process):
        for line in self.lines:
            ctypes.CDLL(None).puts(line.encode())

    def finish(self):
        self.finished = True


def test_threads_are_threads_of_the_system_and_there_at_once(monkeypatch):
    seen = []

    class Watched(threading.Barrier):
        def wait(self, timeout=None):
            seen.append(threading.get_native_id())
            return super().wait(timeout)

    monkeypatch.setattr(threading, "Barrier", Watched)
    lines = greeting.greet(0, 1, 5, None, 0)
    assert len(set(seen)) == 5
    assert Counter(lines) == expected(1, 5, 0)


def test_threads_that_cannot_be_started_are_counted(monkeypatch):
    start, started = threading.Thread.start, []

    def limited(self):
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(HybridError, match=r"only 3 of 6 threads could be started .*: --threads 3 or less"):
        greeting.greet(0, 1, 6, None, 0)
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


def test_lines_that_a_kernel_lost_are_noticed():
    kernel = Printing("Hello from block 0, thread 0 of the GPU, called by process 0")
    assert kernel.lines[0] in greeting.greet(0, 1, 1, kernel, 1)
    assert kernel.finished
    with pytest.raises(HybridError, match="printed 1 lines instead of 2"):
        greeting.greet(0, 1, 1, kernel, 2)


def test_what_a_library_prints_meanwhile_goes_to_standard_error(capfd):
    greeting.greet(0, 1, 1, Printing("a library's word"), 0)
    captured = capfd.readouterr()
    assert captured.err == "a library's word\n"
    assert captured.out == ""


@pytest.mark.parametrize("fails", [False, True])
def test_standard_output_is_given_back(fails):
    before = os.fstat(1)
    try:
        with greeting.captured_output() as lines:
            assert os.fstat(1).st_ino != before.st_ino
            ctypes.CDLL(None).puts(b"one")
            if fails:
                raise ValueError
    except ValueError:
        assert lines == []
    else:
        assert lines == ["one"]
    assert (os.fstat(1).st_ino, os.fstat(1).st_dev) == (before.st_ino, before.st_dev)


def test_an_mpi_that_bears_no_threads_is_refused(monkeypatch):
    monkeypatch.setattr(hello, "launched", lambda: object())
    monkeypatch.setattr(hello, "library_in_use", lambda: Library("An MPI 1.0", (3, 1), "x", "FUNNELED", "SINGLE", False))
    with pytest.raises(StartError, match=r"provided >= MPI_THREAD_FUNNELED .*An MPI 1\.0 provides MPI_THREAD_SINGLE"):
        hello._thread_level()
    monkeypatch.setattr(hello, "library_in_use", lambda: Library("An MPI 1.0", (3, 1), "x", "FUNNELED", "MULTIPLE", True))
    assert hello._thread_level() == "MPI thread level FUNNELED asked for, MULTIPLE provided (An MPI 1.0)"


@needs_compiler
def test_a_number_is_taken_by_its_type_and_shape():
    import numpy as np

    from hybrid.emulation.errors import EmulationError
    from hybrid.emulation.kernel import EmulatedKernel
    from hybrid.kernels.sources import KERNELS

    kernel = EmulatedKernel(KERNELS / greeting.SOURCE, greeting.KERNEL)
    for wrong in (np.zeros((1, 1)), np.zeros((2, 1), np.int32), np.zeros((1, 2), np.int32)):
        with pytest.raises(EmulationError, match="not of the kernel's type"):
            kernel((1, 1), (1, 1), 0, (wrong,))
    with greeting.captured_output() as lines:
        kernel((1, 1), (1, 1), 0, (np.full((1, 1), 2**31 - 1, np.int32),))
    assert lines == ["Hello from block 0, thread 0 of the GPU, called by process 2147483647"]


# --- with a GPU


@pytest.mark.gpu
@pytest.mark.parametrize(("blocks", "block"), [(3, 4), (1, 1024), (64, 1024)])
def test_a_gpus_lines_all_come(real_gpus, blocks, block):
    done = run("--device", "cuda", "--threads", 2, "--blocks", blocks, "--threads-per-block", block,
               CUDA_VISIBLE_DEVICES=os.environ.get("CUDA_VISIBLE_DEVICES", real_gpus[0].uuid))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Counter(done.stdout.splitlines()[:-1]) == expected(1, 2, blocks, block)
    assert "emulated" not in done.stderr


@pytest.mark.gpu
@launcher
def test_ranks_greet_from_gpus_and_say_which(real_gpus):
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(gpu.uuid for gpu in real_gpus))
    done = run("--where", "--threads", 1, ranks=2, CUDA_VISIBLE_DEVICES=visible)
    assert done.returncode == 0, done.stderr
    where = [line for line in done.stdout.splitlines() if line.startswith("Process ")]
    assert {re.search(r"GPU-[0-9a-f-]+", line)[0] for line in where} == {gpu.uuid for gpu in real_gpus[:2]}
    assert len(done.stdout.splitlines()) == 2 * (1 + 1 + 12) + 1
