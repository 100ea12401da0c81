# SPDX-License-Identifier: MIT
"""Students' code that a compiler would work on for ages is given up, and nothing of the compiler stays behind."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from hybrid.classroom import registers
from hybrid.classroom.examination import chosen
from hybrid.classroom.student_file import read
from hybrid.commands import lab
from hybrid.emulation import compiler_limits
from hybrid.emulation.build import compiler
from hybrid.emulation.errors import EmulationError

SOLUTIONS = Path(__file__).resolve().parents[1] / "classroom" / "solutions"

pytestmark = pytest.mark.needs("compiler")

KERNEL = "__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m) {{ c[0] = {}; }}\n"
# Each line twice as long as the one before.
MACROS = "#define X0 1+\n" + "".join(f"#define X{i + 1} X{i} X{i}\n" for i in range(27)) + KERNEL.format("X27 0")
PROGRAM = "int main() { one<<<1, 1>>>(); return cudaDeviceSynchronize(); }\n"


@pytest.mark.parametrize(
    ("seconds", "memory", "within"), [(1, 16 << 30, "1 s of processor time"), (20, 256 << 20, "256 MiB of memory")]
)
@pytest.mark.parametrize("more", ["", "\n__global__ void one() { }\n" + PROGRAM], ids=["kernel", "program"])
def test_macros_that_expand_without_end_are_given_up(monkeypatch, tmp_path, more, seconds, memory, within):
    monkeypatch.setattr(compiler_limits, "_SECONDS", seconds)
    monkeypatch.setattr(compiler_limits, "_MEMORY", memory)
    path = tmp_path / "mine.cu"
    path.write_text(MACROS + more)
    with pytest.raises(EmulationError, match=f"mine.cu does not compile within {within}"):
        lab.work(lab.parse(["run", str(path)]))


def test_a_compiler_that_waits_is_ended_with_its_children(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler_limits, "_BY_THE_CLOCK", 1)
    os.mkfifo(tmp_path / "never")
    command = [compiler(), "-fsyntax-only", "-x", "c++", str(tmp_path / "never")]
    with pytest.raises(EmulationError, match="never does not compile"):
        compiler_limits.run_limited("never", command, dict(os.environ), [tmp_path], tmp_path)
    until = time.monotonic() + 10
    while str(tmp_path) in _running():
        assert time.monotonic() < until, "a program of the compiler goes on"
        time.sleep(0.1)


@pytest.mark.needs("landlock")
@pytest.mark.parametrize(
    ("beside", "named", "said"),
    [
        ("sizes.h", "sizes.h", "right"),
        ("classmate.cu", "classmate.cu", "Permission denied"),
        ("class/classmate.h", "../class/classmate.h", "Permission denied"),
    ],
)
def test_a_compiler_reads_own_headers_and_no_files_of_others(tmp_path, capsys, beside, named, said):
    """Not what lies beside the file, as in the folder of a class, and not what lies elsewhere."""
    path, other = tmp_path / "own" / "mine.cu", tmp_path / ("own" if "/" not in beside else "") / beside
    for each in (path, other):
        each.parent.mkdir(exist_ok=True)
    solution = (SOLUTIONS / "element.cu").read_text()
    other.write_text("// what is compiled with it\n")
    path.write_text(f'#include "{named}"\n{solution}')
    try:
        lab.work(lab.parse(["run", str(path), "--sizes", "4", "4", "4"]))
        told = capsys.readouterr().out
    except EmulationError as error:
        told = str(error)
    assert said in told


def _running() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_nvcc_has_the_same_limits(monkeypatch, tmp_path):
    """A stand-in for it, that never ends."""
    monkeypatch.setattr(compiler_limits, "_SECONDS", 2)
    (tmp_path / "nvcc").write_text(
        '#!/bin/sh\nif [ "$1" = --list-gpu-arch ]; then echo compute_90; else while :; do :; done; fi\n'
    )
    (tmp_path / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    taken = registers.taken(*chosen(read(str(SOLUTIONS / "element.cu")), ""), 90)
    assert (taken.of, taken.how) == (
        None,
        "not known: the kernel does not compile within 2 s of processor time: do its macros or templates expand without end?",
    )
