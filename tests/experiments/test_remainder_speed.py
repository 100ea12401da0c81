# SPDX-License-Identifier: MIT
"""scripts/bench_remainders.py: what its recorded lines say, that it runs, and that it finds a wrong product."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.remainder_speed import cli, kernels
from experiments.remainder_speed.results import YARDSTICK, Checked, Results
from hybrid.devices.emulated import EmulatedDevice
from hybrid.kernels.catalogue import named


def line(way, seconds, n, kind="normal", dtype="float64"):
    about = {"part": "products", "way": way, "dtype": dtype, "kind": kind, "device": "cuda", "gpu": "H200"}
    times = {"seconds": dict.fromkeys(("median", "min", "max"), seconds), "alone": 2 * seconds}
    return {**about, **times, "n": n, "l": n, "m": n}


def test_times_are_compared_with_those_of_cublas_for_the_same_matrices():
    made = [line(YARDSTICK, 0.02, 8), line("15 moduli", 0.01, 8), line(YARDSTICK, 0.3, 8, "bytes", "int8")]
    made += [line("packed bytes", 0.1, 8, "bytes", "int8"), line("bytes", 0.1, 8, "integers")]
    table, *_ = Results(made).blocks()
    assert [row[3:7] for row in table.rows] == [
        ["20", "1.00", "40", "1.00"],
        ["10", "2.00", "20", "2.00"],
        ["300", "1.00", "600", "1.00"],
        ["100", "3.00", "200", "3.00"],
        ["100", "–", "200", "–"],
    ]


@pytest.mark.parametrize(("speed", "code"), [(1.70, 0), (1.60, 1)])
def test_goals_are_of_what_was_measured(speed, code, capsys):
    made = [line(YARDSTICK, 0.02, 8192), line("15 moduli", 0.02 / speed, 8192), line("bytes", 1.0, 8192, "integers")]
    assert Checked(made).exit_code() == code
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2, "in turns and alone"
    assert said[0].startswith("MISSED" if code else "pass")


@pytest.mark.needs("compiler")
def test_every_kind_runs_and_its_lines_can_be_read(tmp_path, capsys):
    path = str(tmp_path / "lines.jsonl")
    words = ["--device", "emulate", "--sizes", "20x130x30", "--rounds", "1", "--alone", "0.01", "--dtypes", "float32"]
    assert cli.main([*words, "--json", path]) == 0
    assert cli.main(["--from", path, "--check"]) == 0
    text = capsys.readouterr().out
    for way in ("7 moduli, B ready", "8 moduli", "packed bytes", "reconstruction, by integers", "magnitudes of B"):
        assert way in text
    assert {made["part"] for made in Results.recorded(path)} == {"products", "errors", "stages"}


@pytest.mark.needs("compiler")
def test_kernels_in_turn_give_the_product(rng):
    device = EmulatedDevice(named("tiled"), "float64")
    a, b, c = rng.standard_normal((40, 150)), rng.standard_normal((150, 60)), np.zeros((40, 60))
    emulation = kernels.Emulation(device, a, b, c, 15)
    for ready in (False, True):
        c[...] = 0
        emulation.whole(b_ready=ready)(None)
        assert (np.abs(c - a @ b) <= 2.0**-50 * (np.abs(a) @ np.abs(b))).all()


@pytest.mark.needs("compiler")
def test_a_wrong_product_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(kernels.Emulation, "whole", lambda self, **more: lambda stream: None)
    words = ["--device", "emulate", "--sizes", "8", "--kinds", "integers", "--rounds", "1", "--alone", "0.01"]
    assert cli.main(words) == 3
    assert "bytes is wrong for float64 8×8 · 8×8" in capsys.readouterr().err
