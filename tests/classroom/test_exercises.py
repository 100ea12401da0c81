# SPDX-License-Identifier: MIT
"""Exercises: solutions get all points, the files to begin with do not, and what is wrong with a kernel costs points."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.selection import exhaustive

from hybrid.classroom import rank_exercise
from hybrid.classroom.exercise import EXERCISES, named
from hybrid.commands import lab
from hybrid.errors import UsageError

pytestmark = pytest.mark.needs("compiler", "addr2line")

SOLUTIONS = Path(__file__).resolve().parent / "solutions"
THE_SAME = {"barriers": "tiles", "edges": "tiles"}  # what solves both
NAMES = [exercise.name for exercise in EXERCISES]


def ran(capsys, *arguments):
    code = lab.work(lab.parse([*arguments]))
    return code, capsys.readouterr().out


@pytest.mark.parametrize("name", exhaustive(["conflicts"], NAMES))
def test_a_solution_gets_all_points(capsys, name):
    code, out = ran(capsys, "check", name, str(SOLUTIONS / named(THE_SAME.get(name, name)).file_name))
    assert (code, out.splitlines()[-1]) == (0, f"{name}: {named(name).points} of {named(name).points} points")


@pytest.mark.parametrize("name", exhaustive(["coalesce"], NAMES))
def test_the_file_to_begin_with_is_no_solution(tmp_path, capsys, name):
    _, text = ran(capsys, "start", name)
    path = tmp_path / named(name).file_name
    path.write_text(text)
    code, out = ran(capsys, "check", name, str(path))
    assert code == 1
    assert f"{name}: {named(name).points} of" not in out


def test_each_demand_counts_for_itself(tmp_path, capsys):
    """Two loads a multiply-add, but right: the points of the shapes, and none of the demands."""
    code, out = ran(capsys, "check", "tiles", str(SOLUTIONS / "element.cu"))
    assert code == 1
    *parts, seed, points = out.splitlines()[-5:]
    assert parts == [
        "6 of 6 points: right on 3 of 3 shapes",
        "0 of 4 points: at most 0.125 global loads per multiply-add",
        "0 of 4 points: shared memory is used",
    ]
    assert re.fullmatch(r"--seed \d+ gives the same shapes and elements again", seed)
    assert points == "tiles: 6 of 14 points"


def test_many_files_are_graded_and_one_that_cannot_be_stops_nothing(tmp_path, capsys):
    lines = tmp_path / "grades.jsonl"
    exchanged = tmp_path / "exchanged.cu"
    exchanged.write_text((SOLUTIONS / "element.cu").read_text().replace("a[row * l + k]", "a[row * l]"))
    files = [str(SOLUTIONS / "element.cu"), str(tmp_path / "none.cu"), str(exchanged)]
    code, out = ran(capsys, "grade", "element", *files, "--json", str(lines), "--seed", "1")  # no shape whose sums have one term
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["6", "0", "0"]
    graded = list(map(json.loads, lines.read_text().splitlines()))
    assert [(line["points"], line["of"]) for line in graded] == [(6, 6), (0, 6), (0, 6)]
    assert len({line["seed"] for line in graded}) == 1
    assert "cannot be read" in graded[1]["why"]
    n, l, m = named("element").shapes(graded[0]["seed"])[0]
    assert re.search(rf"right on 0 of 4 shapes \(0 of 6\); {n}×{l}×{m}: \d+ of {n * m} elements are wrong, the", graded[2]["why"])


@pytest.mark.parametrize("exercise", EXERCISES, ids=NAMES)
def test_shapes_are_drawn_and_have_what_they_are_drawn_for(exercise):
    drawn = [exercise.shapes(seed) for seed in range(200)]
    assert drawn == [exercise.shapes(seed) for seed in range(200)]
    assert len(set(drawn)) > 50
    for shapes in drawn:
        if exercise.of_ranks:
            assert [n % 12 == 0 for n, _, _ in shapes] == [True, False, False]
            assert shapes[2][0] < 3
            continue
        (n, l, m), edges, long, *tiny = shapes
        assert [size % of for size, of in zip((n, l), exercise.tile, strict=False)] == [0, 0]
        assert edges[0] % 2 == edges[1] % 2 == edges[2] % 2 == long[1] % 2 == 1
        assert edges[0] != edges[2]
        assert long[1] >= 150
        assert [m, edges[2], long[2]] == [1, 1, 1] if exercise.vector else m % exercise.tile[2] == 0
        assert bool(tiny) == exercise.tiny


def test_hints_come_one_by_one(capsys):
    first, second = named("barriers").hints
    for hints, seen in ((0, ()), (1, (first,)), (2, (first, second))):
        _, out = ran(capsys, "exercises", "barriers", "--hint", str(hints))
        assert [hint for hint in (first, second) if hint in out] == list(seen)


def test_all_are_listed_and_an_unknown_one_is_refused(capsys):
    _, out = ran(capsys, "exercises")
    assert [line.split()[0] for line in out.splitlines()] == NAMES
    with pytest.raises(UsageError, match=r"there is no exercise tile:.*tiles"):
        ran(capsys, "start", "tile")


ALL_RANKS = (1, 2, 3, 4)
TWO_AT_MOST = (1, 2)  # tell most errors as well, with three processes in place of ten


@pytest.mark.launcher
@pytest.mark.parametrize(
    ("old", "new", "said", "ranks", "points"),
    [
        ("comm.bcast(b)", "b if comm.rank == 0 else None", "ranks", TWO_AT_MOST, 3),
        ("np.array_split(a, comm.size)", "[a] + [a[:0]] * (comm.size - 1)", "rows {n}, 0", ALL_RANKS, 6),
        ("np.concatenate(parts)", "np.concatenate(parts[::-1])", "elements are wrong, the first is C[", TWO_AT_MOST, 3),
        ("np.concatenate(parts)", "parts[0]", "C is {half}×{m}, and should be {n}×{m}", TWO_AT_MOST, 3),
        ("np.concatenate(parts)", "None", "rank 0 returns None", TWO_AT_MOST, 0),
        (
            "comm.gather(product(rows, b))",
            "comm.gather(product(rows, b)) if comm.rank else [product(rows, b)]",
            "should be",
            TWO_AT_MOST,
            3,
        ),
        ("product):", "product)", "SyntaxError: expected ':' (line 7)", TWO_AT_MOST, 0),
        ("def multiply", "def product", "has no function multiply", TWO_AT_MOST, 0),
        (
            "np.array_split(a, comm.size)",
            "np.split(a, comm.size)",
            "ValueError: array split does not result in an equal",
            ALL_RANKS,
            1,
        ),
        ("b = comm.bcast(b)", "b = comm.bcast(b) if comm.rank < 2 else comm.recv()", "does every rank take part", ALL_RANKS, 3),
    ],
)
def test_errors_of_a_program_of_ranks_are_told(monkeypatch, tmp_path, capsys, old, new, said, ranks, points):
    monkeypatch.setattr(rank_exercise, "_RANKS", ranks)
    text = (SOLUTIONS / "ranks.py").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.py"
    path.write_text(text.replace(old, new), encoding="utf-8")
    seconds = "6" if "take part" in said else "60"  # which ranks that wait for each other take, each of them a core
    code, out = ran(capsys, "check", "ranks", str(path), "--stall", seconds, "--seed", "1")
    assert code == 1
    n, _, m = named("ranks").shapes(1)[0]
    assert said.format(n=n, m=m, half=n // 2) in out
    assert out.splitlines()[-1] == f"ranks: {points} of 10 points", out
    assert ("more ranks were not tried" in out) == ("take part" in said)


ENDS_EARLY = {
    "sys.exit() on every rank": "import sys; sys.exit()",
    "os._exit(0)": "import os; os._exit(0)",
    "SystemExit at rank 0 after some of the work": "comm.rank or product(a[:3], b)\n    raise SystemExit(0)",
    "a result of its own making": "import sys, os, json\n"
    "    sizes = [list(map(int, each.split(','))) for each in sys.argv[4:]]\n"
    "    lines = [{'sizes': each, 'rows': [1], 'shape': [1, 1], 'c': 'AA=='} for each in sizes]\n"
    "    open(sys.argv[2], 'w').write(chr(10).join(map(json.dumps, lines)) + chr(10))\n"
    "    os._exit(0)",
}


@pytest.mark.launcher
@pytest.mark.parametrize("way", ENDS_EARLY)
def test_a_program_of_ranks_that_ends_early_gets_no_points(monkeypatch, tmp_path, capsys, way):
    monkeypatch.setattr(rank_exercise, "_RANKS", (1, 2))
    path = tmp_path / "mine.py"
    path.write_text(f"def multiply(comm, a, b, product):\n    {ENDS_EARLY[way]}\n", encoding="utf-8")
    code, out = ran(capsys, "check", "ranks", str(path), "--stall", "60")
    assert (code, out.splitlines()[-1]) == (1, "ranks: 0 of 10 points"), out
    assert ("ended before multiply had returned" in out) or ("is no result of multiply" in out) or ("C is 1×1" in out), out
