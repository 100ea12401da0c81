# SPDX-License-Identifier: MIT
"""scripts/bench_precision.py: what its recorded lines say, and that it finds a wrong product."""

from __future__ import annotations

from experiments import precision
from experiments.precision import YARDSTICK, Results


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
    assert precision.main(["--device", "emulate", "--sizes", "8", "--dtypes", "float64", "--fills", "normal"]) == 3
    assert "native is wrong for float64 8×8 · 8×8" in capsys.readouterr().err
