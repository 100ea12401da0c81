# SPDX-License-Identifier: MIT
"""scripts/bench_check.py: measured on the CPU and the emulated GPU, and what recorded lines say."""

from __future__ import annotations

import pytest

from experiments import check_cost
from experiments.check_cost import PLACES, Results
from hybrid.errors import DeviceUnavailable

QUICK = ["--rounds", "1", "--sizes", "20x32x16"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("emulate", marks=pytest.mark.needs("compiler"))])
def test_every_place_and_type_is_checked_timed_and_recorded(tmp_path, capsys, device):
    path = str(tmp_path / "lines.jsonl")
    assert check_cost.main([*QUICK, "--device", device, "--json", path]) == 0
    lines = Results.recorded(path)
    assert [(line["dtype"], line["place"]) for line in lines] == [
        (dtype, place) for dtype in ("float32", "float64") for place in PLACES
    ]
    table = capsys.readouterr().out
    assert check_cost.main(["--from", path]) == 0
    assert capsys.readouterr().out == table
    assert "20×32×16" in table


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
    assert check_cost.main([*QUICK, "--device", "cpu", "--places", "host"]) == 3
    assert "host, unchecked is wrong" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(capsys, monkeypatch):
    def none():
        raise DeviceUnavailable("no GPU here")

    monkeypatch.setattr(check_cost, "usable_gpus", none)
    assert check_cost.main(["--sizes", "8"]) == 1
    assert "no GPU here" in capsys.readouterr().err
