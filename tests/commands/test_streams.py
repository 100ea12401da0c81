# SPDX-License-Identifier: MIT
"""A reader that leaves, as `head` does, is no failure: commands and scripts end quietly, with their work done."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, module

from hybrid.ranks.launcher import mpirun

SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*.py"))
COMMANDS = (
    "hybrid",
    "hybrid.matmul 8 8 8 --print",
    "hybrid.matmul --help",
    "hybrid.matmul --kernel list",
    "hybrid.matmul 8 8 8 --explain",
    "hybrid.matmul 8 8 8 --json -",
    "hybrid.hello --device cpu",
    "hybrid.doctor --clean",
    "hybrid.accept --level 1 --device cpu",
    "hybrid.paths ten --length 4",
    "hybrid.lab exercises",
    "hybrid.lab --help",
)


def without_a_reader(*command: str | Path, both: bool = False) -> subprocess.CompletedProcess[str]:
    """Run it with an output that nobody reads any more; with `both`, standard error is the same."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            command, stdout=writer, stderr=writer if both else subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_ends_quietly(words):
    done = without_a_reader(sys.executable, "-m", *words.split())
    assert done.returncode == 0
    assert "roken" not in done.stderr
    assert "Traceback" not in done.stderr
    assert without_a_reader(sys.executable, "-m", *words.split(), both=True).returncode == 0


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_quietly(name):
    done = without_a_reader(sys.executable, ROOT / "scripts" / name, "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_files_are_written_and_a_failure_is_one_without_a_reader_too(tmp_path):
    command = [*module("hybrid.matmul"), "8", "8", "8"]
    done = without_a_reader(*command, "--json", tmp_path / "run.jsonl", "--out", tmp_path / "C.npy")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "run.jsonl").read_text())["n"] == 8
    assert (tmp_path / "C.npy").stat().st_size > 512
    assert without_a_reader(*command, "--a", tmp_path / "none.npy").returncode == 2


@pytest.mark.parametrize("unbuffered", [(), ("-u",)])
def test_what_the_reader_took_before_it_left_is_whole(unbuffered):
    command = [sys.executable, *unbuffered, "-m", "hybrid.matmul", "300", "300", "300", "--print", "300"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        first = running.stdout.readline()
        running.stdout.close()
        said = running.stderr.read()
    assert first.startswith("C (300×300) = A (300×300) · B (300×300)")
    assert (running.returncode, said) == (0, "")


@pytest.mark.launcher
def test_ranks_end_quietly_whatever_the_launcher_does_then():
    """MPICH's mpirun is killed by its next write; Open MPI's goes on, or says in a line of its own that it aborts."""
    done = without_a_reader(*mpirun(2), *module("hybrid.matmul"), "300", "300", "300", "--print", "300")
    assert [line for line in done.stderr.splitlines() if not re.search(r"prterun: SIGPIPE detected", line)] == []
    assert done.returncode in (0, 1, 141, -13)


@pytest.mark.parametrize(
    "words", ["scripts/run.sh --help", "scripts/test.sh --help", "scripts/on_gpu.sh --help", ".ci/run --list"]
)
def test_shell_scripts_end_quietly(words):
    script, *options = words.split()
    assert without_a_reader("bash", ROOT / script, *options).stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command",
    [
        "-m hybrid.matmul 8 8 8",
        "-m hybrid.matmul --help",
        "-m hybrid.matmul --version",
        "-m hybrid.lab --help",
        "scripts/ladder.py --help",
        "scripts/ablation.py --help",
    ],
)
def test_a_full_disk_is_still_a_failure(command, unbuffered):
    with open("/dev/full", "w") as full:
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(
            [sys.executable, *command.split()],
            cwd=ROOT,
            env=env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode in (1, 2)
    assert re.fullmatch(r".*(hybrid\.\w+|\w+\.py): standard output cannot be written: No space left on device\n", done.stderr)
