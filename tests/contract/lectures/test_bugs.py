# SPDX-License-Identifier: MIT
"""docs/errata.md: each error of the documents, put back into a program of this package, is found by the lab."""

import re
from functools import partial

import pytest
from support.commands import ROOT, module, successful
from support.forked import quickly
from support.selection import exhaustive

pytestmark = pytest.mark.needs("compiler")

BUGS = [*module("hybrid.lectures"), "bugs"]
start = partial(quickly, limit=280)  # for compilations on a busy machine, too

FRAME = f"{200**2 - (200 // 32 * 32) ** 2} of P's 40000 elements never written"
# The codes of what is found, and what the sizes alone say.
EXPECTED = {
    "loose-bounds": ({"out-of-bounds"}, "B is 24×38"),
    "rounded-down": (
        {"never-written", "wrong-terms", "wrong-elements"},
        f"{40 * 72 - 32 * 64} of C's 2880 elements never written",
    ),
    "empty-grid": ({"lab-launch"}, "0×0 blocks"),
    "no-bounds": ({"out-of-bounds"}, "N is 40×40"),
    "no-bounds-tiled": ({"data-race", "out-of-bounds"}, "of different blocks"),
    "second-tile": ({"wrong-operand", "wrong-elements"}, "P is M · M"),
    "width-1000-gm": ({"never-written", "wrong-elements"}, FRAME),
    "width-1000-sm": ({"never-written", "wrong-terms", "wrong-elements"}, "8 products of 200"),
    "no-first-barrier": ({"data-race", "wrong-elements"}, "1600 of 1600 elements are wrong"),
    "no-second-barrier": ({"data-race", "wrong-elements"}, "no __syncthreads() stands between them"),
    "early-return": ({"kernel-barrier"}, "has left the kernel"),
}


@pytest.mark.parametrize("name", exhaustive(["rounded-down"], ["rounded-down", ""]))
def test_every_error_is_found_as_its_sizes_say(name):
    """Each alone, or all in one run."""
    said = successful(start(BUGS, "--seed", 7, *(["--bug", name] if name else []))).stdout
    told = {part.partition(":")[0]: part for part in f"\n{said}".split("\n== ")[1:]}
    assert set(told) == ({name} if name else {*EXPECTED})
    for bug, text in told.items():
        codes, words = EXPECTED[bug]
        assert set(re.findall(r" \[([a-z-]+)\]$", text, re.MULTILINE)) == codes, text
        assert words in text


def test_the_errata_name_the_errors_that_run_and_no_others():
    listed = [line.split()[0] for line in successful(start(BUGS, "--list")).stdout.splitlines()]
    page = (ROOT / "docs/errata.md").read_text(encoding="utf-8")
    assert sorted(listed) == sorted(EXPECTED)
    assert set(re.findall(r"\(`(\w[\w-]+)`\)", page)) == set(listed)


def test_without_a_compiler_it_is_said():
    done = start(BUGS, PATH="/none", CXX="")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("[no-compiler]\n")
