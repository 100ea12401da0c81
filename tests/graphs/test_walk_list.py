# SPDX-License-Identifier: MIT
"""The paths behind a count, one by one, the sum that an entry is, and the picture."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from support.commands import module, start, successful

from hybrid.errors import CheckFailed, UsageError
from hybrid.graphs import picture
from hybrid.graphs.graph import read_graph
from hybrid.graphs.walk_list import Walk, listed, terms
from hybrid.reporting import jsonl

TEN = read_graph("ten", None, directed=False, probabilities=False)
FIVE = read_graph("five", None, directed=False, probabilities=False)
SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments, **options):
    return start(module("hybrid.paths"), *arguments, **options)


@pytest.mark.parametrize("length", [0, 1, 2, 4])
def test_a_list_has_the_walks_that_trying_all_sequences_finds(rng, length):
    adjacency = rng.integers(0, 3, (3, 3))
    tail, head = 1, 2
    every = {}
    for inner in itertools.product(range(3), repeat=max(0, length - 1)):
        walk = (tail, *inner, head)[: length + 1] if length else (tail,)
        choices = int(np.prod([adjacency[step] for step in itertools.pairwise(walk)], dtype=np.int64))
        if walk[-1] == head and choices:
            every[walk] = choices
    count = int(np.linalg.matrix_power(adjacency, length)[tail, head])
    assert {walk.vertices: walk.edges for walk in listed(adjacency, length, tail, head, count)} == every


def test_more_than_can_be_read_are_refused_with_their_number():
    count = int(np.linalg.matrix_power(TEN.adjacency, 9)[2, 9])
    with pytest.raises(UsageError, match=f"{count} paths lead there, and at most 1000 are listed"):
        listed(TEN.adjacency, 9, 2, 9, count)


def test_a_count_that_the_list_does_not_have_is_no_count():
    with pytest.raises(CheckFailed, match="7 paths were found one by one, and 8 were counted"):
        listed(TEN.adjacency, 4, 2, 9, 8)


def test_terms_that_do_not_add_up_are_no_sum():
    row, column = TEN.adjacency[2], np.linalg.matrix_power(TEN.adjacency, 3)[:, 9]
    with pytest.raises(CheckFailed, match="does not give the 8"):
        list(terms(TEN.names, (2, 9), 4, row, column, 8))


def test_names_with_a_hyphen_are_kept_apart():
    assert Walk((0, 1), 1).told(["a-b", "c"]) == "a-b → c"
    assert Walk((0, 1, 0), 6).told(["a", "b"]) == "a-b-a (6 paths: parallel edges)"


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [0, 2])
def test_figures_1_3_and_1_4(ranks):
    done = successful(run("ten", "--length", 4, "--from", "C", "--to", "J", "--list", "--terms", ranks=ranks))
    number, *rest = done.stdout.splitlines()
    assert number == "7"
    assert rest[:7] == ["C-B-F-G-J", "C-B-F-H-J", "C-B-F-I-J", "C-D-F-G-J", "C-D-F-H-J", "C-D-F-I-J", "C-E-H-G-J"]
    heads, *table, total, last = rest[7:]
    assert heads.split("  ") == ["by way of", "from C, length 1", "to J, length 3", "product"]
    column = [0, 3, 1, 3, 1, 4, 8, 9, 8, 4]
    row = [1, 1, 0, 1, 1, 0, 0, 0, 0, 0]
    assert [line.split() for line in table] == [
        [name, *map(str, (one, more, one * more))] for name, one, more in zip("ABCDEFGHIJ", row, column, strict=True)
    ]
    assert total.split() == ["sum", "7"]
    assert last == "1·0 + 1·3 + 0·1 + 1·3 + 1·1 + 0·4 + 0·8 + 0·9 + 0·8 + 0·4 = 7"


def test_terms_are_exact_beyond_int64():
    done = successful(run("five", "--length", 150, "--from", "A", "--to", "B", "--terms"))
    number, last = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    power = np.linalg.matrix_power(FIVE.adjacency.astype(object), 150)
    assert number == str(power[0, 1])
    assert last.endswith(f"({len(number)} digits)")


def test_the_list_is_recorded(tmp_path):
    successful(run("ten", "--length", 3, "--from", "C", "--to", "J", "--list", "--json", tmp_path / "runs.jsonl"))
    (line,) = jsonl.read(str(tmp_path / "runs.jsonl"))
    assert line["walks"] == ["C-E-H-J"]


def texts(path):
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    return [element.text for element in root.iter(f"{SVG}text")]


def test_a_picture_of_the_graph(tmp_path):
    successful(run("ten", "--length", 4, "--picture", tmp_path / "ten.svg"))
    root = ElementTree.parse(tmp_path / "ten.svg").getroot()
    assert texts(tmp_path / "ten.svg") == ["ten: 10 vertices, 17 edges that go both ways", *"ABCDEFGHIJ"]
    assert len([path for path in root.iter(f"{SVG}path") if path.get("fill") == "none"]) == 17


def test_a_panel_for_each_path(tmp_path):
    successful(run("ten", "--length", 4, "--from", "C", "--to", "J", "--list", "--picture", tmp_path / "ten.svg"))
    title, *rest = texts(tmp_path / "ten.svg")
    assert title == "ten: 7 paths of length 4 from C to J"
    assert [text for text in rest if "-" in text][-1] == "C-E-H-G-J"
    assert rest.count("A") == 7


def test_more_paths_than_panels_are_said(tmp_path):
    adjacency = np.ones((5, 5), np.int64)
    picture.write(str(tmp_path / "full.svg"), "full", adjacency, list("12345"), (0, 1), listed(adjacency, 3, 0, 1, 25))
    assert "the first 12 of 25 paths are drawn" in texts(tmp_path / "full.svg")


@pytest.mark.parametrize("vertices", [1, 2, 3, 7, 60])
def test_vertices_do_not_meet(rng, vertices):
    """Also of graphs that are not connected, or have no edges at all."""
    for share in (0.0, 0.1, 0.7):
        at = picture.places((rng.random((vertices, vertices)) < share).astype(np.int64))
        assert at.shape == (vertices, 2)
        assert np.isfinite(at).all()
        assert ((at > -1e-9) & (at < 1 + 1e-9)).all()
        apart = np.hypot(*np.moveaxis(at[:, None] - at[None], -1, 0)) + np.eye(vertices)
        assert apart.min() > 0.3 / vertices


def test_names_cannot_break_the_picture(tmp_path):
    (tmp_path / "g.csv").write_text('from/to,<a>,"b&"\n<a>,0,2\n"b&",1,1\n')
    successful(run(tmp_path / "g.csv", "--length", 1, "--picture", tmp_path / "g.svg"))
    assert texts(tmp_path / "g.svg")[1:] == ["×2", "<a>", "b&"]


WRONG = [
    (["--list"], "--list is for one number: name both ends, --from and --to"),
    (["--terms", "--from", "A"], "--terms is for one number"),
    (["--length", "1001", "--list", "--from", "A", "--to", "B"], "at most 1000 edges are listed"),
    (["--length", "0", "--terms", "--from", "A", "--to", "B"], "--length 1 or more"),
    (["--length", "9", "--list", "--from", "C", "--to", "J"], r"--list: \d+ paths lead there"),
    (["--list", "--stochastic", "--from", "C", "--to", "J"], "not for the probabilities"),
    (["--picture", "ten.png"], "the name must end in .svg"),
    (["--picture", "none/ten.svg"], "there is no folder"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_what_cannot_be_shown_is_refused_in_a_line(arguments, said, tmp_path):
    done = run("ten", "--length", "4", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(said, done.stderr.splitlines()[-1]), done.stderr
    assert not list(tmp_path.iterdir())


def test_large_graphs_have_no_picture_and_no_terms(tmp_path):
    np.save(tmp_path / "g.npy", np.ones((101, 101), np.int64))
    done = run("g.npy", "--length", 2, "--picture", "g.svg", cwd=tmp_path)
    assert (done.returncode, "60 are the most" in done.stderr) == (2, True)
    done = run("g.npy", "--length", 2, "--from", 1, "--to", 2, "--terms", cwd=tmp_path)
    assert (done.returncode, "100 are the most" in done.stderr) == (2, True)
