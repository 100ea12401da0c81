# SPDX-License-Identifier: MIT
"""The command that plants mutants: on a tree of two files, each verdict."""

import subprocess
from dataclasses import replace

import pytest

from experiments.checks.mutants import Mutant, kept, plant, table
from hybrid.reporting import jsonl

SOURCE = """from __future__ import annotations


def larger(a: int | None, b: int) -> int:
    if a > b:
        return a
    return b


def unseen(a: int) -> int:
    return a + 1
"""
TESTS = """from hybrid.some import larger


def test_first():
    assert larger(2, 1) == 2


def test_second():
    assert larger(1, 2) == 2


def test_by_itself():
    assert False, "on any tree"
"""
FILE = "hybrid/some.py"
FOUND = Mutant(FILE, "return b\n", "return a\n", "the other", "tests/test_some.py::test_second")
SURVIVES = Mutant(FILE, "a > b", "a >= b", "equal", "tests/test_some.py::test_second", survives="either is the larger")
GONE = Mutant(FILE, "a < b", "a <= b", "rewritten", "tests/test_some.py")
TWICE = Mutant(FILE, "return", "raise", "not once in the file", "tests/test_some.py")
NO_TESTS = Mutant(FILE, "a + 1", "a + 2", "nobody looks", "tests/test_gone.py")


@pytest.fixture
def checkout(tmp_path):
    root = tmp_path / "checkout"
    ini = "[pytest]\naddopts = -p no:zarr -p no:hypothesispytest -p no:xdist\n"  # which would load much at each start
    files = {FILE: SOURCE, "hybrid/__init__.py": "", "tests/test_some.py": TESTS, "pytest.ini": ini}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


@pytest.mark.needs("git")
def test_each_is_planted_in_a_copy_and_tested_once(checkout):
    mutants = [replace(each, ranks=()) for each in (FOUND, SURVIVES, GONE, TWICE, NO_TESTS)]
    told = list(plant(checkout, mutants, jobs=1))
    assert [each["verdict"] for each in told] == ["found", "survived", "not applicable", "not applicable", "no tests"]
    assert told[0]["by"] == "tests/test_some.py::test_second"
    assert (checkout / FILE).read_text() == SOURCE
    lines = list(table(mutants, {each["key"]: each for each in told}))
    assert "1 of 3" in lines[1]
    assert [line.partition(":")[0] for line in lines[3:]] == ["survived", "no tests"]
    assert "either is the larger" in lines[3]
    assert "NO REASON" in lines[4]


def test_a_run_goes_on_with_what_a_file_keeps_of_its_commit(tmp_path):
    path = str(tmp_path / "lines.jsonl")
    assert kept(path, "c1") == {}
    for key, commit in (("a", "c1"), ("b", "c2"), ("c", "c1")):
        jsonl.write({"command": "mutants", "commit": commit, "key": key, "verdict": "found"}, path)
    assert [*kept(path, "c1")] == ["a", "c"]
