# SPDX-License-Identifier: MIT
"""python -m hybrid.accept as users start it: healthy jobs, and jobs with a rank that is wrong, slow, or fails."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.commands import module, start
from support.selection import exhaustive

from hybrid.commands.accept import LEVELS as NUMBERS
from hybrid.commands.accept import parse
from hybrid.diagnostics.acceptance_levels import LEVELS
from hybrid.errors import UsageError
from hybrid.reporting import jsonl

COMMAND = module("hybrid.accept")
PLANTED = Path(__file__).parent / "programs" / "accept_planted.py"

launcher = pytest.mark.launcher


def run(*arguments, command=COMMAND, **options):
    return start(command, *arguments, "--device", "cpu", "--threads", 1, **options)


def planted(kind, rank, *arguments, **options):
    return run(*arguments, "--level", 1, command=[sys.executable, PLANTED, kind, str(rank)], **options)


def test_without_anything_planted():
    done = run("--level", 1)
    assert done.returncode == 0, done.stdout + done.stderr


def wrong(text):
    """What is said to be wrong, without the subject."""
    return [re.split(r"  +", line, maxsplit=2)[2] for line in text.splitlines() if line.startswith("WRONG")]


@launcher
@pytest.mark.parametrize("ranks", [0, 2])
def test_a_healthy_job_is_accepted(ranks):
    done = planted("even", 0, ranks=ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    count = max(1, ranks)
    assert last.startswith(f"accepted: {count} rank{'s' * (count > 1)}, level 1, 1 rotation in ")
    assert f"{3 * (count + 1)} products checked, all right" in lines[0]  # a warm-up, and each block on each rank, three times
    assert ("not compared: there is one rank" if count == 1 else "no rank takes 10 % longer than the other rank") in lines[1]
    assert "not watched: no GPU is used" in lines[-1]


@launcher
@pytest.mark.parametrize(("ranks", "rank"), exhaustive([(2, 1)], [(2, 0), (2, 1), (3, 2)]))
def test_a_rank_that_multiplies_wrong_is_named_and_the_test_goes_on(tmp_path, ranks, rank):
    path = tmp_path / "accept.jsonl"
    done = planted("wrong", rank, "--json", path, ranks=ranks)
    assert done.returncode == 1
    (said,) = wrong(done.stdout)
    blocks = ",".join(map(str, range(ranks))) if ranks == 1 else f"0-{ranks - 1}"
    assert re.match(rf"rank {rank} on \S+: {ranks + 1} wrong products of \d+, with row block {blocks}; ", said), said
    assert "not accepted" in done.stdout.splitlines()[-1]
    (record,) = jsonl.read(str(path))
    assert not record["ok"]
    assert [entry["rank"] for entry in record["wrong"]] == [rank] * (ranks + 1)
    assert {entry["block"] for entry in record["wrong"]} == set(range(ranks))


@launcher
@pytest.mark.parametrize(("ranks", "rank"), exhaustive([(2, 1)], [(2, 0), (2, 1), (3, 0), (3, 2)]))
def test_a_slow_rank_is_named_and_no_other(ranks, rank):
    done = planted("slow", rank, ranks=ranks)
    assert done.returncode == 1, done.stdout + done.stderr
    (said,) = wrong(done.stdout)
    than = "the median of all ranks" if ranks > 2 else "the other rank, the only one to compare it with"
    assert re.match(rf"rank {rank} on \S+: slow, takes longer than {than}, by \d+ % with float64 ", said), said


@launcher
def test_a_rank_that_fails_ends_the_job_in_one_line():
    done = planted("fails", 1, ranks=2)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("hybrid")]
    assert re.fullmatch(r"hybrid\.accept: rank 1 on \S+, multiply: ValueError: planted", line)


def test_json_and_page(tmp_path):
    page = tmp_path / "accept.html"
    done = run("--level", 3, "--minutes", 0, "--json", "-", "--html", page)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].startswith("accepted: 1 rank, level 3, 1 rotation in ")
    path = tmp_path / "accept.jsonl"
    path.write_text(done.stdout)
    (record,) = jsonl.read(str(path))
    assert list(record)[2:-2] == [
        "command", "ranks", "level", "device", "ok", "products", "rotations", "left_out", "seconds", "seed", "findings", "wrong",
        "placements", "multiply", "node_links", "links", "peer_copies", "watched", "minutes", "settings",
    ]  # fmt: skip
    assert (record["command"], record["ok"], record["wrong"], record["watched"]) == ("accept", True, [], [None])
    sizes = [tuple(case[key] for key in ("rows", "l", "m", "dtype")) for case in record["multiply"]]
    small = [(*size, dtype) for size in LEVELS[2].sizes["cpu"] for dtype in ("float32", "float64")]
    assert sizes == small
    assert record["left_out"] == ["float32", "float64"]  # for want of time
    assert "note     products   no large float32 and float64: neither time" in done.stderr
    assert {key for case in record["multiply"] for spread in case["ranks"] for key in spread} == {"median", "min", "max"}
    text = page.read_text()
    assert "<h1>Acceptance test: accepted</h1>" in text
    assert "<h2>Rank 0 on " in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--minutes", "-1"], "-1 is not a number of minutes: 0 or more"),
        (["--minutes", "nan"], "nan is not a number of minutes"),
        (["--minutes", "soon"], "'soon' is not a number of minutes"),
        (["--level", "5"], "unknown choice '5': one of 1, 2, 3, 4"),
        (["--jsn", "x"], "unknown option --jsn: did you mean --json?"),
        (["--device", "tpu"], "device"),
    ],
)
def test_wrong_usage_is_refused(arguments, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        parse(arguments)


def test_wrong_usage_is_exit_code_2(tmp_path):
    done = run("--html", tmp_path / "none" / "page.html")
    assert done.returncode == 2
    assert "there is no folder" in done.stderr
    same = run("--html", tmp_path / "one", "--json", tmp_path / "one")
    assert same.returncode == 2
    assert "name the same file" in same.stderr


def test_products_are_checked_and_not_repaired_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("HYBRID_CHECK", "off")
    monkeypatch.setenv("HYBRID_ON_FAULT", "repair")
    _, settings = parse([])
    assert (settings.check, settings.on_fault) == ("on", "raise")


def test_the_levels_are_those_that_help_tells_of(capsys):
    assert tuple(LEVELS) == NUMBERS
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = capsys.readouterr().out
    for level in (1, 2):
        for sizes in (*LEVELS[level].sizes["cpu"], *LEVELS[level].sizes["cuda"]):
            assert "×".join(map(str, sizes)) in text
    for level in LEVELS.values():
        described = text.partition(f"\n  level {level.number} ")[2].partition("\n  level ")[0]
        assert f"{level.minutes:.0f} minutes" in described


@pytest.mark.exhaustive
@pytest.mark.needs("compiler")
def test_an_emulated_gpu_is_tested_as_well():
    done = start(COMMAND, "--level", 1, "--device", "emulate", "--threads", 1)
    assert done.returncode == 0, done.stdout + done.stderr
