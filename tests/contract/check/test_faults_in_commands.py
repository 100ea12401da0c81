# SPDX-License-Identifier: MIT
"""A command whose product is wrong ends with 3 on every rank, hands nothing of it out, and its JSON line tells what was wrong;
with --on-fault repair it ends with 0 and tells what it repaired (docs/use.md, docs/failures.md)."""

import json

import numpy as np
import pytest
from support import matmul
from support.checked import named
from support.commands import ROOT
from support.selection import exhaustive

pytestmark = pytest.mark.launcher
SIZES = [90, 60, 70, "--fill", "normal"]


def run(tmp_path, *arguments, plant=(), **more):
    """The finished command and its JSON line."""
    record = tmp_path / "run.jsonl"
    record.unlink(missing_ok=True)
    done = matmul.run(*SIZES, "--json", record, *arguments, planted=[*plant], **more)
    return done, json.loads(record.read_text().splitlines()[-1]) if record.exists() else None


@pytest.mark.parametrize(
    ("fill", "kind", "check"),
    exhaustive(
        [("lecture", "exact", "on"), ("normal", "freivalds", "host")],
        [(*of, check) for of in (("lecture", "exact"), ("normal", "freivalds")) for check in ("on", "host")],
    ),
)
def test_a_right_product_tells_how_it_was_checked(tmp_path, fill, kind, check):
    done, line = run(tmp_path, "--check", check, "--fill", fill, HYBRID_STAGED="1")
    assert done.returncode == 0, done.stderr
    found = line["check"]
    assert (found["ok"], found["kind"], found["tolerance"]) == (True, kind, 0 if kind == "exact" else 8)
    assert found["error"] <= found["tolerance"]
    assert not found["faults"]
    assert kind in done.stdout.splitlines()[-1]


def test_what_cannot_be_judged_is_told(tmp_path):
    a, b = np.random.default_rng(1).standard_normal((2, 50, 50))
    a[3, 4], b[5, 6] = np.nan, np.inf
    for name, matrix in (("A", a), ("B", b)):
        np.save(tmp_path / f"{name}.npy", matrix)
    check = matmul.record("--a", tmp_path / "A.npy", "--b", tmp_path / "B.npy")["check"]
    assert check["ok"]
    assert check["note"]


@pytest.mark.parametrize("ranks", exhaustive([2], [0, 2]))
def test_a_repaired_product_is_right_and_the_command_ends_with_0(tmp_path, ranks):
    out, faults = tmp_path / "C.npy", ["multiply how=element", "multiply how=element at=3"]
    done, line = run(tmp_path, "--on-fault", "repair", "--repeat", "4", "--out", out, plant=faults, ranks=ranks)
    assert done.returncode == 0, done.stderr
    told = line["check"]["repaired"]
    assert line["check"]["ok"]
    assert len(told) == 2 * max(1, ranks)
    assert sorted(named(each).rank for each in told) == sorted([*range(ranks or 1)] * 2)
    assert [each for each in done.stdout.splitlines() if each.startswith("repaired")] == [f"repaired: {each}" for each in told]
    again, _ = run(tmp_path, "--out", tmp_path / "right.npy")
    assert again.returncode == 0
    np.testing.assert_allclose(np.load(out), np.load(tmp_path / "right.npy"), rtol=1e-9, atol=1e-12)


def test_what_was_repaired_in_any_part_is_told(tmp_path):
    arguments = ("--on-fault", "repair", "--out", tmp_path / "C.npy", "--resume", "--resume-rows", "30")
    for at in (0, 2):
        done, line = run(tmp_path, *arguments, plant=[f"multiply how=element at={at}"])
        assert (done.returncode, line["check"]["ok"], len(line["check"]["repaired"])) == (0, True, 1), done.stderr
        (tmp_path / "C.npy").unlink()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_repetition_that_computes_nothing_is_wrong(tmp_path, rank):
    """Though the one before has left the right C: at the root, and on another node."""
    (tmp_path / "faults.py").write_text("def keep(into, source, before):\n    into[:] = before\n")
    fault = f"multiply rank={rank} how=faults.py:keep at=1"
    done, _ = run(
        tmp_path, "--repeat", "2", plant=[fault], ranks=2, cwd=tmp_path, PYTHONPATH=str(ROOT), HYBRID_RANKS_PER_NODE="1"
    )
    assert done.returncode == 3, done.stdout


def test_what_cannot_be_repaired_ends_with_3(tmp_path):
    """Rows that arrived differently on another node: nobody knows which are right."""
    nodes = {"HYBRID_STAGED": "1", "HYBRID_RANKS_PER_NODE": "1", "HYBRID_TRANSPORT": "host"}
    done, line = run(tmp_path, "--on-fault", "repair", plant=["arrive rank=1 how=element"], ranks=2, **nodes)
    assert done.returncode == 3, done.stdout
    assert not line["check"]["ok"]
    assert "check-exchange" in {each["code"] for each in line["check"]["faults"]}
