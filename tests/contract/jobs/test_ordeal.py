# SPDX-License-Identifier: MIT
"""scripts/ordeal.py: random faults to random jobs, counted; the nightly ordeal runs it for long (docs/failures.md, Tried)."""

import json
import sys

import pytest
from support.commands import ROOT, successful
from support.commands import start as started


def ordeal(*arguments, limit=280.0):
    return started([sys.executable, str(ROOT / "scripts" / "ordeal.py")], *arguments, limit=limit)


def test_what_cannot_be_tried_or_summed_is_wrong_usage(tmp_path):
    (tmp_path / "empty").write_text("")
    for arguments in (["--from", tmp_path / "empty"], ["--trials", 0]):
        done = ordeal(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments


def test_kept_trials_are_counted_by_what_went_wrong(tmp_path):
    """What stayed behind is a fault, unless nobody of ours could have removed it."""
    path = tmp_path / "lines.jsonl"
    usual = {"schema": 1, "command": "ordeal", "part": "trial", "date": "2026-11-30", "arguments": [], "fault": "killed"}
    usual |= {"whom": "worker", "machine": {"processor": "any", "cores": 2}, "seconds": 1.5, "ended": True, "exit_code": 1}
    usual |= {"well": True, "launcher_hung": False, "apart": False, "left": []}
    left, apart = {"left": ["hybrid-1"]}, {"left": ["hybrid-1"], "apart": True}
    for different, code in (({}, 0), (apart, 0), (left, 1), ({"well": False}, 1)):
        path.write_text(json.dumps(usual) + "\n" + json.dumps(usual | different) + "\n")
        done = ordeal("--from", path)
        assert (done.returncode, "1.5 s" in done.stdout) == (code, True), (different, done)


@pytest.mark.launcher
def test_a_line_that_fails_on_one_rank_keeps_no_rank_waiting():
    """And the next call is right, or the communicator is lost."""
    successful(ordeal("--inside", "--trials", 8, "--ranks", 3, "--seed", 4, "--verbose"))


@pytest.mark.launcher
@pytest.mark.exhaustive
def test_some_trials_from_start_to_end(tmp_path):
    """Each job ends; and the lines that are kept give the same table again."""
    path = tmp_path / "lines.jsonl"
    said = successful(ordeal("--trials", 2, "--ranks", 2, "--seed", 5, "--json", path)).stdout
    tried = [json.loads(text) for text in path.read_text().splitlines()]
    assert sorted((each["seed"], each["number"]) for each in tried if each["part"] == "trial") == [(5, 0), (5, 1)]
    assert successful(ordeal("--from", path)).stdout == said


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.launcher)])
def test_random_products_of_any_arrays_are_right_and_leave_nothing_behind(ranks):
    done = successful(ordeal("--products", 16, "--ranks", ranks, "--seed", 3))
    said = json.loads(done.stdout)
    nothing = [said[name] for name in ("wrong", "failed", "pinned_without_array")]
    assert (said["products"], nothing, said["good"]) == (16, [0, 0, 0], True), done
