# SPDX-License-Identifier: MIT
"""Launches on several shapes share a child process as long as nothing is found, and each shape gets its own verdict."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from hybrid.classroom import launched as launching
from hybrid.classroom.launched import launched
from hybrid.classroom.trial import Task
from hybrid.commands import lab
from hybrid.emulation.child import Ended

SOLUTIONS = Path(__file__).resolve().parent / "solutions"
ORDERS = ("forward", "reverse")


def groups(number):
    """Two launches on each of so many shapes."""
    return [
        [
            Task("", "loads", "float32", (n, n, n), (1, 1), (1, 1), 0, order, 0, 20, names=("a", "b", "c"), file_name="mine.cu")
            for order in ORDERS
        ]
        for n in range(1, number + 1)
    ]


def begun(n):
    return json.dumps({"places": n})


def done(n):
    return json.dumps({"outcome": n})


@pytest.mark.parametrize(
    ("children", "statuses", "outcomes"),
    [
        pytest.param([([begun(1), done(1)] * 2 + [begun(2), done(2)] * 2, 0)], [0, 0], [2, 2], id="one child for all"),
        pytest.param(
            [([begun(1), done(1), begun(1)], -11), ([begun(2), done(2)] * 2, 0)], [-11, 0], [1, 2], id="it crashes on the first"
        ),
        pytest.param([([begun(1), done(1)] * 2 + [begun(2)], 66)], [0, 66], [2, 0], id="it crashes on the last"),
        pytest.param(
            [([begun(1), done(1)] * 2, -6), ([begun(2), done(2)] * 2, 0)], [0, 0], [2, 2], id="it crashes between the two"
        ),
        pytest.param([([begun(1), done(1)] * 2, 0), ([], 1)], [0, 1], [2, 0], id="the second child begins nothing"),
        pytest.param(
            [([begun(1)], -signal.SIGALRM), ([begun(2), done(2), begun(2)], -signal.SIGALRM)],
            [None, None],
            [0, 1],
            id="both have no end",
        ),
    ],
)
def test_each_shape_gets_what_is_its_own(monkeypatch, children, statuses, outcomes):
    asked, to_come = [], list(children)

    def child(module, tasks, checks, seconds, *, limited):
        assert limited
        asked.append([task["sizes"][0] for task in tasks])
        lines, status = to_come.pop(0)
        return Ended("\n".join(lines), "said", status)

    monkeypatch.setattr(launching, "run_child", child)
    runs = launched(groups(2), "loads", 20)
    assert [ended.status for ended, _ in runs] == statuses
    assert [len(found) for _, found in runs] == outcomes
    assert all(set(found) <= {number} for number, (_, found) in enumerate(runs, 1))
    for n, (ended, _) in enumerate(runs, 1):
        assert set(ended.out.splitlines()) <= {begun(n), done(n)}
    assert asked == [[1, 1, 2, 2], [2, 2]][: len(children)]


@pytest.mark.needs("compiler", "addr2line")
@pytest.mark.parametrize(
    ("n", "fault", "said"),
    [
        (32, "if (row + column == 0) c[-40] = 1;", "out of bounds: line 11"),
        (32, "c[1 << 30] = 1;", "out of bounds: line 11"),
        (37, "if (row == 1) c[0] = 1;", "data race: line 10 writes and line 11 writes c"),
    ],
)
def test_a_fault_on_one_shape_does_not_show_on_the_others(tmp_path, capsys, n, fault, said):
    """A store into the memory beside C, one that ends the process, and a race after a launch without any."""
    text = (SOLUTIONS / "element.cu").read_text(encoding="utf-8")
    store = "c[row * m + column] = sum;"
    assert text.count(store) == 1
    path = tmp_path / "mine.cu"
    path.write_text(text.replace(store, f"{store}\n    if (n == {n}) {{ {fault} }}"))
    assert lab.work(lab.parse(["check", "element", str(path), "--stall", "60"])) == 1
    out = capsys.readouterr().out
    assert re.search(said, out), out
    assert out.splitlines()[-2:] == ["4 of 6 points: right on 2 of 3 shapes", "element: 4 of 6 points"], out
