# SPDX-License-Identifier: MIT
"""What scripts/bench_check.py and scripts/bench_precision.py share: measured on the CPU and the emulated GPU, and recorded."""

from __future__ import annotations

import pytest

from experiments import check_cost, precision
from experiments.common.records import in_turns
from hybrid.errors import DeviceUnavailable

SCRIPTS = [check_cost, precision]


@pytest.mark.parametrize(
    ("script", "device", "arguments", "wanted"),
    [
        (check_cost, "cpu", [], [(dtype, place) for dtype in ("float32", "float64") for place in check_cost.PLACES]),
        pytest.param(
            check_cost,
            "emulate",
            [],
            [(dtype, place) for dtype in ("float32", "float64") for place in check_cost.PLACES],
            marks=pytest.mark.needs("compiler"),
        ),
        pytest.param(
            precision,
            "emulate",
            ["--alone", "0.001", "--dtypes", "float32", "--fills", "integers"],
            [("float32", way) for way in (precision.YARDSTICK, *precision.PRECISIONS)],
            marks=pytest.mark.needs("compiler"),
        ),
    ],
)
def test_every_way_is_checked_timed_and_recorded(tmp_path, capsys, script, device, arguments, wanted):
    path = str(tmp_path / "lines.jsonl")
    assert script.main(["--rounds", "1", "--sizes", "20x32x16", "--device", device, *arguments, "--json", path]) == 0
    table = capsys.readouterr().out
    lines = script.Results.recorded(path)
    assert [(line["dtype"], line.get("place") or line["way"]) for line in lines] == wanted
    assert {(line["n"], line["l"], line["m"], line["device"], line["gpu"]) for line in lines} == {(20, 32, 16, device, None)}
    assert {line.get("fill") for line in lines} == {"integers" if script is precision else None}
    assert script.main(["--from", path]) == 0
    assert capsys.readouterr().out == table
    rows = [row for row in table.splitlines() if "20×32×16" in row]
    assert len(rows) == len(wanted)
    assert all(all(word in row for word in words) for row, words in zip(rows, wanted, strict=True))


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_a_gpu_it_says_so(capsys, monkeypatch, script):
    def none():
        raise DeviceUnavailable("no GPU here")

    monkeypatch.setattr("experiments.common.timed_products.usable_gpus", none)
    assert script.main(["--sizes", "8"]) == 1
    assert "no GPU here" in capsys.readouterr().err


def test_of_several_calls_of_a_way_the_last_is_timed():
    called = []
    ways = {name: lambda name=name: called.append(name) for name in "ab"}
    times = in_turns(ways, rounds=2, calls=2)
    assert called == [*"aabb", *"bbaa"]
    assert {name: len(of_way) for name, of_way in times.items()} == {"a": 2, "b": 2}
