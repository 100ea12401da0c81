# SPDX-License-Identifier: MIT
"""scripts/run.sh: which command it makes of its arguments. What it sets up before is CI's to try."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest
from support.commands import ROOT

_SETUP = 'fail() { echo "$1" >&2; exit "$2"; }\nset_up() { MPIRUN=(echo mpirun) PYTHON=python; }\n'


@pytest.fixture
def run(tmp_path):
    """The script, with a setup that has everything and a launcher that prints its command."""
    shutil.copy(ROOT / "scripts" / "run.sh", tmp_path)
    (tmp_path / "setup.sh").write_text(_SETUP, encoding="utf-8")

    def started(arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", tmp_path / "run.sh", *shlex.split(arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)

    return started


@pytest.mark.parametrize(("arguments", "ranks", "left"), [
    ("8 8 8", 2, "8 8 8"),
    ("-n 4 8 8 8", 4, "8 8 8"),
    ("-n4 8 8 8", 4, "8 8 8"),
    ("-np 4 8 8 8", 4, "8 8 8"),
    ("-np4 8 8 8", 4, "8 8 8"),
    ("--np 4 8 8 8", 4, "8 8 8"),
    ("--np=12 8 8 8", 12, "8 8 8"),
    ("8 8 8 -n 3", 3, "8 8 8"),
    ("8 -n3 8 8 --print 2", 3, "8 8 8 --print 2"),
    ("8 8 8 --out 'C 1.npy' -np 1", 1, "8 8 8 --out C 1.npy"),
    ("-n 3 -- --help", 3, "--help"),
    ("-- -n 4", 2, "-n 4"),
    ("", 2, ""),
])  # fmt: skip
def test_the_number_of_ranks_may_stand_anywhere(run, arguments, ranks, left):
    done = run(arguments)
    assert (done.returncode, done.stdout) == (0, f"mpirun -n {ranks} python -m hybrid.matmul {left}".rstrip() + "\n")
    assert shlex.split(done.stderr)[:6] == ["echo", "mpirun", "-n", str(ranks), "python", "-m"]


@pytest.mark.parametrize(
    ("arguments", "shown"), [("-n", ""), ("8 8 8 -n", ""), ("-n x 8 8 8", "x"), ("-n0", "0"), ("-np4k", "4k")]
)
def test_what_is_no_number_of_ranks_is_refused(run, arguments, shown):
    done = run(arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"-n wants a number of ranks, not '{shown}'\n"


@pytest.mark.parametrize("arguments", [("--help",), ("-k", "plan", "-h")])
def test_help_of_the_tests_script_sets_nothing_up(tmp_path, arguments):
    shutil.copy(ROOT / "scripts" / "test.sh", tmp_path)
    (tmp_path / "setup.sh").write_text('set_up() { echo "set up" >&2; exit 1; }\n', encoding="utf-8")
    done = subprocess.run(["bash", tmp_path / "test.sh", *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: bash scripts/test.sh ")


def test_help_says_what_is_started(run):
    done = run("8 8 8 --help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: bash scripts/run.sh [-n RANKS] ARGUMENT...\n")


@pytest.mark.parametrize(
    ("environment", "made_anew"), [("another/.venv", "no"), ("checkout/.venv", "yes"), ("checkout/.venv-of-mine", "yes")]
)
def test_only_the_checkout_s_own_environment_is_ever_made_anew(tmp_path, environment, made_anew):
    """Not an active one that the script of another checkout made: it would be removed, with all that is in it."""
    notes, scripts = tmp_path / environment / ".hybrid-runner", tmp_path / "checkout" / "scripts"
    for folder in (notes, notes.parent / "bin", scripts):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup.sh", scripts)
    (notes / "origin").write_text("/where/it/was\npython3\n", encoding="utf-8")
    (notes.parent / "bin" / "python").symlink_to("/bin/true")
    ask = 'source "$1" && ENVIRONMENT=$2 PYTHON=$2/bin/python NOTES=$2/.hybrid-runner && must_be_created && echo yes || echo no'
    done = subprocess.run(
        ["bash", "-c", ask, "ask", scripts / "setup.sh", notes.parent], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (f"{made_anew}\n", "")
