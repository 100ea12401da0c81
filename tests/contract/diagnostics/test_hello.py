# SPDX-License-Identifier: MIT
"""`python -m hybrid.hello` greets from every CPU thread and every GPU thread of every rank: ranks · (threads + blocks · threads a
block) + 1 lines, and with --where one more a rank, so that they can be counted (--help). Everything else is on standard
error. Without a GPU and without a compiler the CPU threads still greet, and the exit code is 1.
"""

import re
from collections import Counter

import pytest
from support.commands import module, own_lines, start
from support.forked import quickly
from support.selection import exhaustive

COMMAND = module("hybrid.hello")
TIME = re.compile(r"Time: \d+\.\d{6}")
launcher = pytest.mark.launcher
needs_compiler = pytest.mark.needs("compiler")


def run(*arguments, **options):
    """On a CPU, which stands for a GPU."""
    return quickly(COMMAND, *arguments, **{"CUDA_VISIBLE_DEVICES": "", "limit": 120, **options})


def expected(ranks, threads, blocks=3, block=4):
    """All greetings."""
    lines = [f"Greetings from CPU thread {t}/{threads} of process {p}/{ranks}!" for p in range(ranks) for t in range(threads)]
    kernel = [(b, t) for b in range(blocks) for t in range(block)]
    lines += [f"Hello from block {b}, thread {t} of the GPU, called by process {p}" for p in range(ranks) for b, t in kernel]
    return Counter(lines)


@needs_compiler
@launcher
@pytest.mark.parametrize(
    ("ranks", "threads", "blocks", "block"),
    exhaustive([(0, 1, 3, 4), (3, 3, 7, 33)],
               [(0, 1, 3, 4), (3, 3, 7, 33), (0, 1, 64, 1024), (0, 1, 1, 1), (4, 2, 3, 4), (1, 5, 2, 1024)]),
)  # fmt: skip
def test_every_thread_greets_once_the_lines_of_a_rank_together_and_then_the_time_comes(ranks, threads, blocks, block):
    done = run("--threads", threads, "--blocks", blocks, "--threads-per-block", block, ranks=ranks)
    assert done.returncode == 0, done.stderr
    size = max(1, ranks)
    *lines, time = done.stdout.splitlines()
    assert Counter(lines) == expected(size, threads, blocks, block)
    assert TIME.fullmatch(time)
    assert len(lines) + 1 == size * (threads + blocks * block) + 1
    of = [int(re.search(r"process (\d+)", line)[1]) for line in lines]
    assert of == sorted(of)
    said = own_lines(done.stderr)
    assert len(said) == 2  # MPI's level of threads, and why the kernel is emulated
    assert ("MPI thread level" in said[0]) == bool(ranks)


@needs_compiler
@launcher
def test_where_is_a_line_more_a_rank():
    done = run("--where", "--threads", 2, ranks=2)
    lines = done.stdout.splitlines()
    where = [line for line in lines if line.startswith("Process ")]
    assert len(lines) == 2 * (1 + 2 + 12) + 1
    placed = [re.match(r"Process (\d)/2 is on \S+, cores [\d,-]+, no GPU \(emulated\)", line)[1] for line in where]
    assert sorted(placed) == ["0", "1"]
    assert len([line for line in lines if TIME.fullmatch(line)]) == 1
    assert Counter(line for line in lines if line not in where and not TIME.fullmatch(line)) == expected(2, 2)


@pytest.mark.parametrize(
    ("environment", "threads"), [({"OMP_NUM_THREADS": "5"}, 5), ({"OMP_NUM_THREADS": "5", "SLURM_CPUS_PER_TASK": "3"}, 3)]
)
def test_the_threads_are_slurms_or_openmps_and_a_cpu_alone_runs_no_kernel(environment, threads):
    done = run("--device", "cpu", **environment)
    assert done.returncode == 0
    assert Counter(done.stdout.splitlines()[:-1]) == expected(1, threads, 0)


@launcher
@pytest.mark.parametrize("ranks", exhaustive([2], [0, 2]))
def test_without_gpu_and_compiler_the_threads_still_greet_and_the_code_is_1(ranks, tmp_path):
    done = run("--threads", 2, ranks=ranks, PATH=str(tmp_path), CXX="")
    *lines, time = done.stdout.splitlines()
    assert Counter(lines) == expected(max(ranks, 1), 2, 0)
    assert TIME.fullmatch(time)
    assert done.returncode == 1
    assert "g++" in own_lines(done.stderr)[-1]


@pytest.mark.parametrize(("blocks", "block"), [(65, 1024), (1, 1025), (0, 4)])
def test_more_lines_than_a_kernel_prints_are_refused(blocks, block):
    done = run("--blocks", blocks, "--threads-per-block", block)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("[number]\n")


def test_without_a_compiler_no_kernel_is_emulated(tmp_path):
    done = run("--device", "emulate", PATH=str(tmp_path), CXX="")
    assert (done.returncode, done.stdout) == (1, "")
    assert own_lines(done.stderr)[-1].endswith("[no-compiler]")


@pytest.mark.gpu
@pytest.mark.parametrize(("blocks", "block"), [(3, 4), (64, 1024)])
def test_a_gpus_lines_all_come(blocks, block):
    done = start(COMMAND, "--device", "cuda", "--threads", 2, "--blocks", blocks, "--threads-per-block", block, "--where")
    assert done.returncode == 0, done.stderr
    where, *lines, _ = done.stdout.splitlines()
    assert re.search("GPU-[0-9a-f-]+", where)
    assert Counter(lines) == expected(1, 2, blocks, block)
