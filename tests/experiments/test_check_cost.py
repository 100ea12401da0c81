# SPDX-License-Identifier: MIT
"""scripts/bench_check.py: what its recorded lines say, and that it finds a wrong product."""

from __future__ import annotations

import pytest

from experiments import check_cost
from experiments.check_cost import PLACES, Results


@pytest.mark.gpu
def test_measured_on_a_gpu(tmp_path):
    path = str(tmp_path / "lines.jsonl")
    assert check_cost.main(["--rounds", "1", "--sizes", "200x320x160", "--json", path]) == 0
    assert len(Results.recorded(path)) == 2 * len(PLACES)


def test_the_ratio_is_that_of_the_medians():
    def spread(median):
        return {"median": median, "min": median / 2, "max": 2 * median}

    about = {"part": "check", "n": 8, "l": 8, "m": 8, "device": "cuda", "gpu": "H200", "dtype": "float64", "place": "host"}
    (table,) = Results([about | {"unchecked": spread(0.02), "checked": spread(0.025)}]).blocks()
    assert table.rows == [["host", "float64", "8×8×8", "20", "25", "1.250"]]


def test_a_wrong_product_is_refused(monkeypatch, capsys):
    original = check_cost.hybrid.multiply

    def wrong(a, b, **more):
        c = original(a, b, **more)
        c[3, 4] += 1
        return c

    monkeypatch.setattr(check_cost.hybrid, "multiply", wrong)
    assert check_cost.main(["--rounds", "1", "--sizes", "20x32x16", "--device", "cpu", "--places", "host"]) == 3
    assert "host, unchecked is wrong" in capsys.readouterr().err
