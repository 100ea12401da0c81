# SPDX-License-Identifier: MIT
"""What `hybrid.paths` shows besides the numbers: every path, the sum that a number is, and the picture."""

import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from support.commands import module, own_lines, successful
from support.forked import quickly
from support.selection import exhaustive

PATHS = module("hybrid.paths")
SVG = "{http://www.w3.org/2000/svg}"
launcher = pytest.mark.launcher


def run(*arguments, **options):
    return quickly(PATHS, *arguments, limit=240, **options)


@pytest.mark.parametrize("length", exhaustive([4], [0, 1, 2, 4]))
def test_the_list_has_the_paths_that_trying_all_sequences_finds(tmp_path, rng, length):
    """Each with the number of ways, where edges are parallel."""
    edges = rng.integers(0, 3, (3, 3))
    np.savetxt(tmp_path / "g.csv", edges, fmt="%d", delimiter=",")
    every = {}
    for inner in itertools.product(range(3), repeat=max(0, length - 1)):
        walk = (1, *inner, 2)[: length + 1] if length else (1,)
        ways = int(np.prod([edges[step] for step in itertools.pairwise(walk)], dtype=np.int64))
        if walk[-1] == 2 and ways:
            every["-".join(str(vertex + 1) for vertex in walk)] = ways
    number, *lines = successful(
        run("g.csv", "--length", length, "--from", 2, "--to", 3, "--list", cwd=tmp_path)
    ).stdout.splitlines()
    assert int(number) == sum(every.values()) == np.linalg.matrix_power(edges, length)[1, 2]
    listed = {line.split()[0]: int(re.search(r"\((\d+)", line)[1]) if "(" in line else 1 for line in lines}
    assert listed == every


@pytest.mark.exhaustive
def test_terms_are_exact_beyond_int64():
    done = successful(run("five", "--length", 150, "--from", "A", "--to", "B", "--terms"))
    number, *table, total, last = done.stdout.splitlines()
    products = [int(line.split()[-1]) for line in table[1:] if line.split()[-1].isdigit()]
    assert len(number) > 19
    assert last.endswith(f"({len(number)} digits)")
    assert total.split()[0] == "sum"
    assert not products or max(products) <= int(number)


@pytest.mark.exhaustive
def test_large_graphs_show_their_corner_and_long_numbers_are_shortened(tmp_path):
    np.save(tmp_path / "g.npy", np.ones((30, 30), np.int8))
    done = successful(run("g.npy", "--length", 3, "--print", 4, cwd=tmp_path))
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["from\\to", *"1234"],
        *([str(n), *["900"] * 4] for n in range(1, 5)),
    ]
    assert "4 of 30" in done.stderr
    corner = successful(run("five", "--length", 300, "--print", 1)).stdout.splitlines()
    assert re.fullmatch(r"\s+A  \d{8}…\d{8} \(\d+ digits\)", corner[1])


def texts(path):
    return [element.text for element in ElementTree.parse(path).getroot().iter(f"{SVG}text")]


def test_pictures_of_the_graph_and_a_panel_for_each_path(tmp_path):
    successful(run("ten", "--length", 4, "--picture", "ten.svg", cwd=tmp_path))
    title, *names = texts(tmp_path / "ten.svg")
    assert (names, "10 vertices, 17 edges" in title) == (list("ABCDEFGHIJ"), True)
    root = ElementTree.parse(tmp_path / "ten.svg").getroot()
    assert len([path for path in root.iter(f"{SVG}path") if path.get("fill") == "none"]) == 17
    successful(run("ten", "--length", 4, "--from", "C", "--to", "J", "--list", "--picture", "seven.svg", cwd=tmp_path))
    title, *rest = texts(tmp_path / "seven.svg")
    assert "7 paths of length 4 from C to J" in title
    assert [text for text in rest if "-" in text][-1] == "C-E-H-G-J"
    assert rest.count("A") == 7
    successful(run("five", "--length", 3, "--from", "B", "--to", "D", "--list", "--picture", "six.svg", cwd=tmp_path))
    across = {name: {place.split()[0] for place in re.findall(r"translate\((.*?)\)", (tmp_path / name).read_text())}
              for name in ("six.svg", "seven.svg")}  # fmt: skip
    assert list(map(len, across.values())) == [3, 4]


def test_names_cannot_break_the_picture_and_vertices_stay_apart(tmp_path):
    """Also in a graph without edges between its parts."""
    (tmp_path / "g.csv").write_text('from/to,<a>,"b&",c,d\n<a>,0,2,0,0\n"b&",1,1,0,0\nc,0,0,0,0\nd,0,0,0,0\n')
    successful(run("g.csv", "--length", 1, "--picture", "g.svg", cwd=tmp_path))
    assert texts(tmp_path / "g.svg")[1:] == ["×2", "<a>", "b&", "c", "d"]
    root = ElementTree.parse(tmp_path / "g.svg").getroot()
    at = np.array([[float(circle.get("cx")), float(circle.get("cy"))] for circle in root.iter(f"{SVG}circle")])
    assert len(at) == 4
    apart = np.hypot(*np.moveaxis(at[:, None] - at[None], -1, 0)) + 1e9 * np.eye(4)
    assert apart.min() > 20


@pytest.mark.exhaustive
def test_large_graphs_have_no_picture_and_no_terms(tmp_path):
    np.save(tmp_path / "g.npy", np.ones((101, 101), np.int64))
    for words in (["--picture", "g.svg"], ["--from", 1, "--to", 2, "--terms"]):
        done = run("g.npy", "--length", 2, *words, cwd=tmp_path)
        assert (done.returncode, done.stdout, len(own_lines(done.stderr)) >= 1) == (2, "", True)
    assert [path.name for path in tmp_path.iterdir()] == ["g.npy"]
