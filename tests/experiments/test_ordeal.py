# SPDX-License-Identifier: MIT
"""Random blows to random jobs: how a job's end is judged, and what is counted."""

from __future__ import annotations

import signal

import pytest

from experiments.ordeal import cli
from experiments.ordeal.trials import Blow, _well, blows
from hybrid.reporting import jsonl

KILL_WORKER = Blow("SIGKILL", signal.SIGKILL, "worker")
KILL_LAUNCHER = Blow("SIGKILL", signal.SIGKILL, "launcher")
STOP_RANK = Blow("SIGSTOP", signal.SIGSTOP, "rank")


@pytest.mark.parametrize(
    ("blow", "code", "said", "out", "well"),
    [
        (KILL_WORKER, 137, ["hybrid: rank 0 on n, fill: was killed by SIGKILL"], "", True),
        (KILL_WORKER, 137, [], "", False),
        (KILL_WORKER, 137, ["hybrid: one", "hybrid: two"], "", False),
        (KILL_WORKER, 0, [], "check ok", True),
        (KILL_WORKER, 0, [], "", False),
        (KILL_WORKER, 0, ["hybrid: a complaint"], "check ok", False),
        (KILL_WORKER, None, [], "", False),
        (KILL_LAUNCHER, -9, [], "", True),
        (STOP_RANK, 1, [], "", False),
        (STOP_RANK, 143, [], "what was finished", True),
    ],
)
def test_an_end_is_well_if_it_succeeds_or_is_named_once(blow, code, said, out, well):
    assert _well(blow, code, said, out) is well


def test_there_is_a_launcher_to_hit_only_where_there_is_one():
    assert {blow.whom for blow in blows(0)} == {"worker", "supervisor", "rank", "all", "nobody"}
    assert {blow.whom for blow in blows(2)} == {"worker", "supervisor", "rank", "all", "nobody", "launcher"}


def lines(**differences):
    line = {"part": "trial", "number": 0, "ranks": 2, "blow": "SIGKILL", "whom": "worker", "seconds": 0.5}
    return [line | {"ended": True, "well": True, "left": []}, line | {"ended": True, "well": True, "left": []} | differences]


@pytest.mark.parametrize(
    ("differences", "row", "code"),
    [
        ({"seconds": 2.5}, "2      0        2.5 s                0                 0", 0),
        ({"ended": False, "well": False}, "2      1        0.5 s                0                 0", 1),
        ({"well": False}, "2      0        0.5 s                1                 0", 0),
        ({"left": ["/dev/shm/x"]}, "2      0        0.5 s                0                 1", 0),
        ({"left": ["process 12"]}, "2      0        0.5 s                0                 1", 1),
    ],
)
def test_what_went_wrong_is_counted(differences, row, code):
    results = cli.Results(
        [line | {"machine": {"processor": "p", "cores": 2}, "date": "2026-01-01"} for line in lines(**differences)]
    )
    assert any(printed.endswith(row) and printed.startswith("all") for printed in results.printed())
    assert results.exit_code() == code


@pytest.mark.launcher
@pytest.mark.exhaustive
def test_a_trial_from_start_to_end(tmp_path, capsys):
    path = str(tmp_path / "lines.jsonl")
    assert cli.main(["--trials", "1", "--ranks", "2", "--seed", "5", "--json", path]) == 0
    said = capsys.readouterr().out
    assert len([line for line in jsonl.read(path) if line["part"] == "trial"]) == 1
    assert cli.main(["--from", path]) == 0
    assert capsys.readouterr().out == said
