# SPDX-License-Identifier: MIT
"""The share of faults that the check finds, counted on small products."""

from __future__ import annotations

import numpy as np
import pytest
from support.selection import exhaustive

import hybrid
from experiments import detection, repairs
from hybrid.devices.emulated import EmulatedDevice


@pytest.mark.needs("matplotlib")
def test_a_run_is_counted_printed_drawn_and_read_again(tmp_path, capsys):
    lines, picture = str(tmp_path / "lines.jsonl"), tmp_path / "picture.svg"
    asked = ["--sizes", "80", "--faults", "20", "--json", lines, "--picture", str(picture)]
    assert detection.main(asked) == 0
    printed = capsys.readouterr().out
    assert "0 of 60 right products were refused" in printed
    assert picture.stat().st_size > 1000
    assert detection.main(["--from", lines]) == 0
    assert capsys.readouterr().out == printed
    faults = [line for line in detection.Results.recorded(lines) if line["part"] == "faults"]
    assert [sum(injected for injected, _ in line["counts"]) for line in faults] == [20] * len(detection.DATA) * len(
        detection.KINDS
    )


@pytest.mark.parametrize("faults", exhaustive([40], [40, 300]))
@pytest.mark.parametrize("data", exhaustive(["float32"], ["float32", "float64"]))
def test_no_fault_that_stands_out_of_the_rounding_errors_stays_unseen(rng, data, faults):
    lines = list(detection.measured(512, data, faults, rng))
    assert [line["alarms"] for line in lines if line["part"] == "right"] == [0]
    for line in lines[1:]:
        *_, large, largest = line["counts"]
        assert large[0] == large[1], line
        assert largest[0] == largest[1] > 0, line


def test_a_check_that_finds_nothing_fails(monkeypatch, capsys):
    monkeypatch.setattr(detection.Product, "fault", lambda *_: 1e6)
    monkeypatch.setattr(detection.Product, "repair", lambda _: None)
    assert detection.main(["--sizes", "80", "--faults", "1"]) == 1
    assert "0 of 1" in capsys.readouterr().out


def test_repairs_are_counted_printed_and_read_again(tmp_path, capsys):
    lines = str(tmp_path / "lines.jsonl")
    assert detection.main(["--repair", "--sizes", "130", "--faults", "2", "--seed", "5", "--json", lines]) == 0
    printed = capsys.readouterr().out
    assert "48 faults: " in printed
    assert " 0 refused, 0 wrong." in printed
    assert detection.main(["--from", lines]) == 0
    assert capsys.readouterr().out == printed
    for line in detection.Results.recorded(lines):
        if "copied" in line["kind"]:  # checksums miss none
            assert sum(of_size[0] for of_size in line["counts"]) == 2


@pytest.mark.gpu
def test_faults_of_a_gpu_are_repaired(capsys):
    assert detection.main(["--repair", "--device", "cuda", "--sizes", "600", "--faults", "2", "--seed", "5"]) == 0
    printed = capsys.readouterr().out
    assert "48 faults: " in printed
    assert " 0 refused, 0 wrong." in printed


@pytest.mark.needs("matplotlib")
def test_repairs_have_no_picture(tmp_path, capsys):
    asked = ["--repair", "--sizes", "130", "--faults", "1", "--picture", str(tmp_path / "picture.svg")]
    assert detection.main(asked) == 2
    assert "--repair has no picture" in capsys.readouterr().err


def test_a_repair_that_repairs_nothing_fails(monkeypatch, capsys):
    monkeypatch.setattr(detection.repairs, "is_right", lambda *_: False)
    assert detection.main(["--repair", "--sizes", "130", "--faults", "1", "--kinds", "A copied"]) == 1
    assert "3 faults: 0 repaired, 0 unseen, 0 refused, 3 wrong." in capsys.readouterr().out


def test_a_fault_that_is_never_put_in_is_an_error(monkeypatch):
    monkeypatch.setattr(detection.repairs, "multiplied", lambda *_: ("unseen", 1.0))
    with pytest.raises(RuntimeError, match="no multiply of this product could be spoiled"):
        detection.main(["--repair", "--sizes", "130", "--faults", "1"])


@pytest.mark.needs("compiler")
def test_a_product_from_remainders_can_be_spoiled_and_is_repaired(rng):
    a, b = rng.standard_normal((130, 70)), rng.standard_normal((70, 130))
    right, c = hybrid.multiply(a, b), np.empty((130, 130))
    injection = repairs.Injection("a tile", {"A": a, "B": b, "C": c}, 1.0, rng)
    with injection.planted(EmulatedDevice), pytest.warns(RuntimeWarning, match="repaired: "):
        hybrid.multiply(a, b, out=c, device="emulate", precision="fast", on_fault="repair")
    assert injection.size >= 0.1
    np.testing.assert_allclose(c, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "wrong", [["--sizes", "63"], ["--repair", "--sizes", "127"], ["--faults", "1", "2", "--sizes", "80"], ["--device", "cuda"]]
)
def test_what_cannot_be_is_refused(wrong, capsys):
    assert detection.main(wrong) == 2
    assert "--" in capsys.readouterr().err
