# SPDX-License-Identifier: MIT
"""scripts/scaling.py: what many nodes exchange by the plan, and how runs have scaled."""

from __future__ import annotations

import pytest

from experiments import scaling
from hybrid.reporting import jsonl

TWO_RUNS = [
    {"command": "matmul", "nodes": nodes, "n": n, "total": {"median": seconds}, "rate": 2 * n**3 / seconds}
    for nodes, n, seconds in ((1, 1000, 2.0), (2, 1000, 1.25), (2, 1260, 2.0))
]


@pytest.fixture
def runs(tmp_path):
    path = str(tmp_path / "runs.jsonl")
    for line in TWO_RUNS:
        jsonl.write(line, path)
    return path


def test_the_best_grid_is_near_the_least_and_row_blocks_are_far_from_it(capsys):
    assert scaling.main(["100000", "100000", "100000", "--most", "64", "--network", "10GB/s"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("100000×100000 · 100000×100000 float64, 10 GB/s a node")
    *_, of_64 = lines
    assert of_64.split()[:3] == ["64", "64x1", "7.00"]
    assert "4x4x4   1.00 ×" in of_64
    assert len(lines) == 2 + 7


def test_seconds_are_those_of_the_link_or_of_the_multiplication(capsys):
    assert scaling.main(["1000", "1000", "1000", "--most", "2", "--network", "1kB/s", "--flops", "1e6"]) == 0
    *_, alone, of_two = capsys.readouterr().out.splitlines()
    assert "2e+03 s" in alone, "2·1000³ operations at 10⁶ a second, and nothing is sent"
    assert "4e+03 s" in of_two, "half of B in bytes, at 1000 a second"


def test_runs_are_compared_a_node(runs, capsys):
    assert scaling.main(["--runs", runs]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [(row[0], row[1], row[-1]) for row in table] == [
        ("strong", "1", "1.00"),
        ("strong", "2", "0.80"),
        ("weak", "1", "1.00"),
        ("weak", "2", "1.00"),
    ]


@pytest.mark.needs("matplotlib")
def test_pictures_are_drawn(runs, tmp_path, capsys):
    for name, words in (("plan.svg", ["--most", "8"]), ("runs.svg", ["--runs", runs])):
        picture = tmp_path / name
        assert scaling.main([*words, "--picture", str(picture)]) == 0
        assert "nodes" in picture.read_text()
    assert "grid with layers" in (tmp_path / "plan.svg").read_text()


def test_wrong_usage_is_one_line(tmp_path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for words, said in (
        (["5", "5"], "three sizes n l m are needed, 2 given"),
        (["--runs", str(empty)], "has no lines of hybrid.matmul"),
    ):
        assert scaling.main(words) != 0
        assert said in capsys.readouterr().err
