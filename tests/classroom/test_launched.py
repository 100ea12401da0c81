# SPDX-License-Identifier: MIT
"""Launches on several shapes share a child process as long as nothing is found, and each shape gets its own verdict."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from hybrid.classroom import launched as launching
from hybrid.classroom.elements import encoded, operands
from hybrid.classroom.exercise import named
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


def done(n, **more):
    """C = A · B, as the task's seed gives them, and a number that tells whose it is."""
    *_, right = operands((n, n, n), "float32", 0)
    return json.dumps({"outcome": {"stopped": "", "c": encoded(right.astype("float32")), "stores": n, **more}})


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

    def child(module, tasks, checks, seconds, *, limited, reads):
        assert limited
        asked.append([task["sizes"][0] for task in tasks])
        lines, status = to_come.pop(0)
        return Ended("\n".join(f"{tasks[0]['mark']} {line}" for line in lines), "said", status)

    monkeypatch.setattr(launching, "run_child", child)
    runs = launched(groups(2), "loads", 20)
    assert [ended.status for ended, _ in runs] == statuses
    assert [len(found) for _, found in runs] == outcomes
    for number, (_, found) in enumerate(runs, 1):
        assert all((outcome["stores"], outcome["wrong"]) == (number, ()) for outcome in found)
    for n, (ended, _) in enumerate(runs, 1):
        assert set(ended.out.splitlines()) <= {begun(n), done(n)}
    assert asked == [[1, 1, 2, 2], [2, 2]][: len(children)]


def forged(lines):
    return lambda module, tasks, checks, seconds, *, limited, reads: Ended("\n".join(lines(tasks[0]["mark"])), "", 0)


@pytest.mark.parametrize(
    ("lines", "outcomes"),
    [
        pytest.param(lambda mark: [done(1)] * 2, [], id="without the mark"),
        pytest.param(lambda mark: [f"{'0' * 32} {done(1)}"] * 2, [], id="with a mark that it made up"),
        pytest.param(lambda mark: [f"{mark} {done(1, c='')}"] * 2, ["report"] * 2, id="without C"),
        pytest.param(lambda mark: [f"{mark} {done(1, c=encoded(operands((2, 2, 2), 'float32', 0)[0]))}"] * 2, ["report"] * 2),
        pytest.param(lambda mark: [f"{mark} {done(1, c=encoded(np.float32([7])), wrong=[])}"] * 2, [(0,)] * 2, id="a wrong C"),
    ],
)
def test_what_a_process_says_of_itself_is_not_believed(monkeypatch, lines, outcomes):
    monkeypatch.setattr(launching, "run_child", forged(lines))
    ((ended, found),) = launched(groups(1), "loads", 20)
    assert [outcome["stopped"] or outcome["wrong"] for outcome in found] == outcomes
    assert ended.status == 0


FORGED = {"c": "", "loads": [0, 0], "stores": 0, "digest": "", "sites": [], "branches": [], "accesses": [], "outside": []}
FORGER = """#include <stdio.h>
#include <string.h>
extern "C" { long write(int, const void*, unsigned long); void _exit(int); }
__global__ void multiply(const float* a, const float* b, float* c, int n, int l, int m)
{
    const char text[] = TEXT;
    for (int file = 3; file < 12; ++file)
        for (int launch = 0; launch < 3; ++launch)
            if (::write(file, text, strlen(text)) < 0) break;
    ::_exit(0);
}
"""


@pytest.mark.needs("compiler", "addr2line")
def test_a_kernel_that_writes_its_own_verdict_gets_no_points(tmp_path, capsys):
    """To every file that may be the results', and ends the process before ours could say anything."""
    line = json.dumps({"outcome": {**FORGED, "stopped": "", "why": "", "wrong": [], "first_wrong": None, "nan": 0, "never": []}})
    path = tmp_path / "forged.cu"
    path.write_text(FORGER.replace("TEXT", json.dumps(line + "\n")))
    assert lab.work(lab.parse(["check", "element", str(path)])) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "element: 0 of 6 points", out
    assert "the kernel ended the process" in out


@pytest.mark.needs("compiler", "addr2line")
@pytest.mark.parametrize(
    ("shape", "fault", "said"),
    [
        (0, "if (row + column == 0) c[-40] = 1;", "out of bounds: line 11"),
        (0, "c[1 << 30] = 1;", "out of bounds: line 11"),
        (1, "if (row == 1) c[0] = 1;", "data race: line 10 writes and line 11 writes c"),
    ],
)
def test_a_fault_on_one_shape_does_not_show_on_the_others(tmp_path, capsys, shape, fault, said):
    """A store into the memory beside C, one that ends the process, and a race after a launch without any."""
    shapes = named("element").shapes(0)
    n = shapes[shape][0]
    assert [each[0] for each in shapes].count(n) == 1
    text = (SOLUTIONS / "element.cu").read_text(encoding="utf-8")
    store = "c[row * m + column] = sum;"
    assert text.count(store) == 1
    path = tmp_path / "mine.cu"
    path.write_text(text.replace(store, f"{store}\n    if (n == {n}) {{ {fault} }}"))
    assert lab.work(lab.parse(["check", "element", str(path), "--stall", "60", "--seed", "0"])) == 1
    out = capsys.readouterr().out
    assert re.search(said, out), out
    assert "4 of 6 points: right on 3 of 4 shapes" in out.splitlines(), out
    assert out.splitlines()[-1] == "element: 4 of 6 points", out
