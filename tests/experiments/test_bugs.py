# SPDX-License-Identifier: MIT
"""What scripts/bugs.py says of each error, worked out here from the sizes alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support.selection import exhaustive

from experiments.kernel_checks import bugs
from experiments.kernel_checks.bug_list import BUGS
from experiments.start import SCRIPTS

pytestmark = pytest.mark.needs("compiler")

SCRIPT = SCRIPTS / "bugs.py"
SEED = 7
LARGE = "width-1000-gm"  # takes seconds: with --all only


def named(name):
    return next(bug for bug in BUGS if bug.name == name)


@pytest.fixture(scope="module")
def outcome_of():
    """The faulty kernel's, each run once."""
    kept = {}

    def outcome(name):
        if name not in kept:
            bug = named(name)
            kept[name] = bugs.tried(bug.launch, bug.shape, SEED, equal=bug.equal, stride=bug.stride)
        return kept[name]

    return outcome


# Which threads write, by the row and the column they take for theirs.
WRITERS = {
    "loose-bounds": lambda row, column: (row <= 20) & (column <= 38),
    "rounded-down": lambda row, column: (row < 32) & (column < 64),
    "no-bounds": lambda row, column: (row < 48) & (column < 48),
    "no-bounds-tiled": lambda row, column: (row < 48) & (column < 48),
    "second-tile": lambda row, column: (row < 64) & (column < 64),
    "width-1000-gm": lambda row, column: (row < 192) & (column < 192),
    "width-1000-sm": lambda row, column: (row < 192) & (column < 192),
    "no-first-barrier": lambda row, column: (row < 20) & (column < 40),
    "no-second-barrier": lambda row, column: (row < 20) & (column < 40),
}
WRONG = {
    "loose-bounds": lambda row, column: (row >= 1) & (column == 0),
    "rounded-down": lambda row, column: row >= 0,
    "no-bounds": lambda row, column: (row >= 1) & (column < 8),
    "no-bounds-tiled": lambda row, column: row >= 0,
    "second-tile": lambda row, column: row >= 0,
    "width-1000-gm": lambda row, column: (row >= 192) | (column >= 192),
    "width-1000-sm": lambda row, column: row >= 0,
    "no-first-barrier": lambda row, column: row >= 0,
    "no-second-barrier": lambda row, column: row >= 0,
}


@pytest.mark.parametrize("name", exhaustive([name for name in WRITERS if name != LARGE], WRITERS))
def test_the_wrong_elements_are_those_that_the_sizes_tell(outcome_of, name):
    outcome = outcome_of(name)
    n, _, m = named(name).shape
    assert not outcome.stopped
    assert (outcome.wrong == WRONG[name](*np.indices((n, m)))).all()
    row, column = np.nonzero(WRITERS[name](*np.indices((2 * n, 2 * m))))
    times = np.bincount(row * m + column, minlength=n * m)
    assert (outcome.writes.ravel() == times[: n * m]).all()
    before, after = np.split(outcome.outside, 2)
    assert not before.any()
    assert (np.flatnonzero(after) == np.flatnonzero(times[n * m :])).all()


@pytest.mark.parametrize("bug", exhaustive([bug for bug in BUGS if bug.name != LARGE], BUGS), ids=lambda bug: bug.name)
def test_the_right_kernel_makes_no_mistake(bug):
    assert bugs.tried(bug.right_launch, bug.shape, SEED, equal=bug.equal, stride=bug.stride).fine


@pytest.mark.parametrize(
    ("name", "circumstances"),
    exhaustive(*([(bug.name, also) for bug in BUGS for also in bug.also if bug.name != left_out] for left_out in (LARGE, ""))),
)
def test_in_other_circumstances_the_error_does_not_show(name, circumstances):
    _, launch, equal = circumstances
    assert bugs.tried(launch, named(name).shape, SEED, equal=equal).fine


def test_a_loose_bound_is_a_race(outcome_of):
    """Blocks run row by row: forward, only the first row of the lower blocks is overwritten by its owner."""
    outcome = outcome_of("loose-bounds")
    assert outcome.wrong_in("forward")[:, 0].nonzero()[0].tolist() == [row for row in range(1, 20) if row != 16]
    assert outcome.wrong_in("reverse")[:, 0].nonzero()[0].tolist() == [16]
    assert (outcome.uncertain == outcome.wrong).all()


@pytest.mark.parametrize(("name", "rows", "columns", "depth"), [("rounded-down", 32, 64, 48), ("width-1000-sm", 192, 192, 192)])
def test_sums_lack_their_last_products(outcome_of, name, rows, columns, depth):
    outcome = outcome_of(name)
    for c in outcome.c.values():
        assert (c[:rows, :columns] == outcome.a[:rows, :depth] @ outcome.b[:depth, :columns]).all()
        assert np.isnan(c[rows:]).all()
        assert np.isnan(c[:, columns:]).all()


def test_the_second_tile_is_of_the_first_matrix(outcome_of):
    outcome = outcome_of("second-tile")
    assert all((c == outcome.a @ outcome.a).all() for c in outcome.c.values())


def test_negative_offsets_land_before_c(outcome_of):
    outcome = outcome_of("offsets-32")
    below = np.indices((20, 20))[0] * 2**27 >= 2**31
    assert (outcome.wrong == below).all()
    assert ((outcome.writes == 0) == below).all()
    assert outcome.outside.shape == (4, 20)
    assert outcome.outside.all()
    assert outcome.where == "8 GiB before C"


def test_the_first_sizes_that_overflow():
    assert 46340**2 - 1 < 2**31 <= 46341**2 - 1
    assert 46320 * 46336 + 46320 < 2**31 <= 46336 * 46352 + 46336
    assert 65536**2 % 2**32 == 0
    text = bugs.first_overflows()
    assert all(size in text for size in ("from 46341×46341 on", "from 46352×46352 on", "At 65536×65536"))


@pytest.mark.parametrize(
    ("name", "order", "right"),
    [
        ("no-first-barrier", "forward", [(15, 15), (15, 31)]),
        ("no-first-barrier", "reverse", [(0, 0), (0, 16), (0, 32), (16, 0), (16, 16), (16, 32)]),
        ("no-second-barrier", "forward", [(0, 0), (0, 16), (0, 32), (16, 0), (16, 16), (16, 32)]),
        ("no-second-barrier", "reverse", [(15, 15), (15, 31)]),
    ],
)
def test_without_a_barrier_one_thread_of_a_block_is_right(outcome_of, name, order, right):
    """The last to load, or the first to use; the lower blocks' last thread, and the right ones', has no element."""
    assert list(map(tuple, np.argwhere(~outcome_of(name).wrong_in(order)))) == right


@pytest.mark.parametrize(
    ("name", "said"), [("empty-grid", "a grid has 1 to "), ("early-return", "waits at the barrier in barriers.cu:")]
)
def test_what_the_runtime_refuses(outcome_of, name, said):
    outcome = outcome_of(name)
    assert said in outcome.stopped
    assert not outcome.fine


@pytest.mark.exhaustive
def test_the_map(outcome_of):
    lines = bugs.drawn(outcome_of("loose-bounds")).splitlines()
    assert lines[0] == "a character is an element:"
    assert lines[1:21] == ["." * 38, *["!" + "." * 37] * 19]
    assert lines[21:] == ["and beside C:", "#" * 38, "#"]
    lines = bugs.drawn(outcome_of("width-1000-gm")).splitlines()
    assert lines == ["a character stands for 10×5 elements:", *["." * 38 + "??"] * 19, "?" * 40]


def test_the_script():
    listed = subprocess.run([sys.executable, SCRIPT, "--list"], capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [bug.name for bug in BUGS]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--bug", "loose-bounds", "--seed", "7"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("--seed 7\n\n== loose-bounds: Hochberg's module, multNoShare\n")
    assert "naive (right): 0 of 760 elements wrong\n" in done.stdout
    assert "written by several threads: 19; writes beside C: 39\n" in done.stdout


def test_an_error_that_does_not_show_ends_with_1(monkeypatch, capsys):
    monkeypatch.setattr(bugs, "BUGS", [bugs.Bug("none", "nowhere", (20, 5, 9), named("loose-bounds").right_launch, "It is not.")])
    monkeypatch.setattr(bugs, "_kernels", bugs._kernels.__wrapped__)
    assert bugs.main(["--seed", "1"]) == 1
    assert "naive<float>: 0 of 180 elements wrong\n" in capsys.readouterr().out


def test_without_a_compiler(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert bugs.main([]) == 2
    assert "need a C++ compiler: apt-get install g++" in capsys.readouterr().err
