# SPDX-License-Identifier: MIT
"""What scripts/ablation.py compares, and what it makes of it. No time is judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.ablation import program
from experiments.ablation.cli import PROGRAM, main, table
from hybrid.reporting import jsonl

SCRIPTS = PROGRAM.parents[2]
NAMES = [mechanism.name for mechanism in program.MECHANISMS]


def machine(device, ranks, folder="."):
    return program.Machine(SimpleNamespace(size=ranks, rank=0), device, folder, adds=True)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("n", [8000, 16000])
def test_on_gpus_every_mechanism_is_switched(ranks, n):
    ours = machine("cuda", ranks)
    for mechanism in program.MECHANISMS:
        assert program.why_not(mechanism, "cuda", ranks) == ("one rank" if "peers" in mechanism.name and ranks == 1 else "")
        tilings = [ours.tiling_of(variant, n) for variant in (mechanism.having, mechanism.without)]
        assert (tilings[0] != tilings[1]) == mechanism.of_tiling, mechanism.name
    models = {ours.model_of(variant) for mechanism in program.MECHANISMS for variant in (mechanism.having, mechanism.without)}
    assert len(models) == 7 + 1, "a variant that is switched by a patch has a model of its own too: plans are kept by it"


def test_switches_do_what_they_say():
    ours = machine("cuda", 1)
    tilings = {
        mechanism.name: [ours.tiling_of(variant, 16000) for variant in (mechanism.having, mechanism.without)]
        for mechanism in program.MECHANISMS
    }
    slabs, panels, interleaved, _, stationary, stationary_slabs = (tilings[name] for name in NAMES)
    assert [bool(each["interleaved"]) for each in slabs] == [True, False]
    assert [each["column_panels"] > 1 for each in panels] == [True, False]
    assert [each["interleaved"] > 1 for each in interleaved] == [True, False]
    assert [each["stationary"] for each in stationary] == ["B", "A"]
    assert [bool(each["slab_rows"]) for each in stationary_slabs] == [True, False]


def line(mechanism, ratio, gpus=1, left_out=None):
    of = {"median": ratio, "min": ratio - 0.1, "max": ratio + 0.1}
    times = {"with": {"median": 0.02}, "without": {"median": 0.02 * ratio}, "ratio": of}
    return {"gpus": gpus, "n": 8000, "mechanism": mechanism, "left_out": left_out, **({} if left_out else times)}


def test_the_table_names_what_is_worth_nothing_anywhere():
    text = table([line("one", 1.019), line("two", 1.3), line("one", 1.0, 2), line("three", 1.0), line("three", 1.1, 2),
                  line("four", 0, left_out="one rank")])  # fmt: skip
    assert "|    1 |   8000 | two       |    20.000 |    26.000 | 1.300 (1.200 to 1.400) |" in text
    assert "| four      |         – |         – | one rank |" in text
    assert text.splitlines()[-1] == "less than 2 % everywhere: one"


@pytest.mark.parametrize("arguments", [["--sizes", "0"], ["--json", "/nowhere/at/all.jsonl"], ["--rounds", "0"]])
def test_wrong_usage_is_one_line_and_exit_2(arguments, capsys):
    assert main(["--device", "cpu", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [1, 2])
def test_small_products_on_a_cpu(tmp_path, ranks):
    path = tmp_path / "ablation.jsonl"
    options = ["--gpus", str(ranks), "--sizes", "150", "--rounds", "2", "--repeat", "1", "--device", "cpu", "--json", str(path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(SCRIPTS.parent), str(SCRIPTS)])
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "ablation.py"), *options], capture_output=True, text=True, env=environment, timeout=100
    )
    assert done.returncode == 0, done.stderr
    lines = list(jsonl.read(str(path)))
    assert [entry["mechanism"] for entry in lines] == NAMES
    assert {(entry["command"], entry["gpus"], entry["n"], entry["device"]) for entry in lines} == {
        ("ablation", ranks, 150, "cpu")
    }
    measured = [entry for entry in lines if not entry["left_out"]]
    assert [entry["mechanism"] for entry in measured] == ["out of core: stationary operand chosen, not A"]
    assert all(entry["rounds"] == 2 and entry["with"]["min"] > 0 for entry in measured)
    assert json.dumps(measured)
    assert "less than 2 % everywhere" in done.stdout
    assert not list(Path(tmp_path).glob("*.json"))
