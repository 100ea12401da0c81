# SPDX-License-Identifier: MIT
"""docs/errata.md: each error of the documents is run beside the right kernel, and which elements come out wrong is what the sizes
alone say."""

import re
from functools import partial

import pytest
from support.commands import ROOT, module, successful
from support.forked import quickly
from support.selection import exhaustive

pytestmark = pytest.mark.needs("compiler")

BUGS = [*module("hybrid.lectures"), "bugs"]
start = partial(quickly, limit=280)  # for compilations on a busy machine, too


def grid(n, m, tile, up):
    """Rows and columns that whole blocks cover."""
    return tuple(-(-size // tile) * tile if up else size // tile * tile for size in (n, m))


def beyond(n, m, height, width):
    """Threads of so many rows and columns write where row · m + column is: elements written twice, and places after C."""
    at = [row * m + column for row in range(height) for column in range(width)]
    return sum(at.count(place) > 1 for place in set(at) if place < n * m), len({place for place in at if place >= n * m})


ROUNDED, WIDTH = grid(40, 72, 16, up=False), grid(200, 200, 32, up=False)
# n and m, elements wrong, never written, written by several threads, and stores beside C.
EXPECTED = {
    "loose-bounds": (20, 38, beyond(20, 38, 21, 39)[0], 0, *beyond(20, 38, 21, 39)),
    "rounded-down": (40, 72, 40 * 72, 40 * 72 - ROUNDED[0] * ROUNDED[1], 0, 0),
    "offsets-32": (20, 20, 80, 80, 0, 80),  # rows from 16 on, 2^27 elements apart
    "no-bounds": (40, 40, beyond(40, 40, 48, 48)[0], 0, *beyond(40, 40, 48, 48)),
    "no-bounds-tiled": (40, 40, 40 * 40, 0, *beyond(40, 40, 48, 48)),
    "second-tile": (64, 64, 64 * 64, 0, 0, 0),
    "width-1000-gm": (200, 200, 200**2 - WIDTH[0] * WIDTH[1], 200**2 - WIDTH[0] * WIDTH[1], 0, 0),
    "width-1000-sm": (200, 200, 200**2, 200**2 - WIDTH[0] * WIDTH[1], 0, 0),
    "no-first-barrier": (20, 40, 800, 0, 0, 0),
    "no-second-barrier": (20, 40, 800, 0, 0, 0),
}
REFUSED = {"empty-grid": "blocks", "early-return": "barrier"}


def sections(text):
    return {part.partition(":")[0]: part for part in text.split("\n== ")[1:]}


def number(pattern, text):
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("name", exhaustive(["loose-bounds", "early-return"], ["loose-bounds", "early-return", ""]))
def test_every_error_shows_as_its_sizes_say_and_the_right_kernel_has_none(name):
    """Each alone, or all in one run."""
    told = sections(successful(start(BUGS, "--seed", 7, *(["--bug", name] if name else []))).stdout)
    assert set(told) == ({name} if name else {*EXPECTED, *REFUSED})
    for name in told.keys() & EXPECTED.keys():
        n, m, wrong, never, several, beside = EXPECTED[name]
        about, right, bug, *others = told[name].splitlines()[1:]
        assert f" {n}×{m}," in f" {about.partition('C ')[2]}"
        assert f"(right): 0 of {n * m} elements wrong" in right
        found = (
            number(r": (\d+) of", bug),
            number(r"never written: (\d+)", bug),
            number(r"several threads: (\d+)", bug),
            number(r"(?:beside|before) C: (\d+)", bug),
        )
        assert found == (wrong, never, several, beside), bug
        assert all(": 0 of" in line for line in others if " elements wrong" in line)  # where it does not show
    for name in told.keys() & REFUSED.keys():
        assert re.search(rf"refused: .*{REFUSED[name]}", told[name])


@pytest.mark.exhaustive
def test_a_map_shows_which_elements(tmp_path):
    """Of the loose bounds: the first column from row 1 on, and one row and an element after C."""
    text = sections(successful(start(BUGS, "--bug", "loose-bounds", "--seed", 1)).stdout)["loose-bounds"]
    drawn = [line.strip() for line in text.splitlines() if re.fullmatch(r" +[.x?!#]+", line)]
    assert drawn == ["." * 38, *["!" + "." * 37] * 19, "#" * 38, "#"]


def test_the_errata_name_the_errors_that_run_and_no_others():
    listed = [line.split()[0] for line in successful(start(BUGS, "--list")).stdout.splitlines()]
    page = (ROOT / "docs/errata.md").read_text(encoding="utf-8")
    assert sorted(listed) == sorted({*EXPECTED, *REFUSED})
    named = set(re.findall(r"\(`(\w[\w-]+)`\)", page))
    assert named == set(listed)


def test_without_a_compiler_it_is_said():
    done = start(BUGS, PATH="/none", CXX="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("[no-compiler]\n")
