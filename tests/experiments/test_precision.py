# SPDX-License-Identifier: MIT
"""scripts/bench_precision.py: measured on the emulated GPU, and what recorded lines say."""

from __future__ import annotations

import pytest

from experiments import precision
from experiments.precision import PRECISIONS, YARDSTICK, Results
from hybrid.errors import DeviceUnavailable

QUICK = ["--device", "emulate", "--rounds", "1", "--alone", "0.001"]


@pytest.mark.needs("compiler")
def test_every_way_is_checked_timed_and_recorded(tmp_path, capsys):
    path = str(tmp_path / "lines.jsonl")
    arguments = [*QUICK, "--sizes", "20x30x10", "--dtypes", "float32", "--fills", "integers", "--json", path]
    assert precision.main(arguments) == 0
    lines = Results.recorded(path)
    assert [line["way"] for line in lines] == [YARDSTICK, *PRECISIONS]
    assert {(line["n"], line["l"], line["m"], line["dtype"], line["fill"]) for line in lines} == {
        (20, 30, 10, "float32", "integers")
    }
    table = capsys.readouterr().out
    assert precision.main(["--from", path]) == 0
    assert capsys.readouterr().out == table
    assert all(any(way in line and "20×30×10" in line for line in table.splitlines()) for way in PRECISIONS)


def test_times_are_compared_with_those_of_cublas_for_the_same_matrices(tmp_path):
    def line(way, seconds, n):
        about = {"part": "precision", "way": way, "dtype": "float64", "fill": "normal", "device": "cuda", "gpu": "H200"}
        times = {"seconds": dict.fromkeys(("median", "min", "max"), seconds), "alone": 2 * seconds}
        return {**about, **times, "n": n, "l": 8, "m": 8}

    made = [line(YARDSTICK, 0.02, 8), line("auto", 0.01, 8), line(YARDSTICK, 0.3, 9), line("auto", 0.1, 9)]
    (table,) = Results(made).blocks()
    assert [row[3:] for row in table.rows] == [
        ["20", "1.00", "40", "1.00"],
        ["10", "2.00", "20", "2.00"],
        ["300", "1.00", "600", "1.00"],
        ["100", "3.00", "200", "3.00"],
    ]


def test_a_wrong_product_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(precision.hybrid, "multiply", lambda a, b, **more: 2 * (a @ b))
    assert precision.main([*QUICK, "--sizes", "8", "--dtypes", "float64", "--fills", "normal"]) == 3
    assert "native is wrong for float64 8×8 · 8×8" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(capsys, monkeypatch):
    def none():
        raise DeviceUnavailable("no GPU here")

    monkeypatch.setattr(precision, "usable_gpus", none)
    assert precision.main(["--sizes", "8"]) == 1
    assert "no GPU here" in capsys.readouterr().err
