# SPDX-License-Identifier: MIT
"""The share of faults that the check finds, counted on small products."""

from __future__ import annotations

import pytest

from experiments import detection


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


def test_a_check_that_finds_nothing_fails(monkeypatch, capsys):
    monkeypatch.setattr(detection.Product, "fault", lambda *_: 1e6)
    monkeypatch.setattr(detection.Product, "repair", lambda _: None)
    assert detection.main(["--sizes", "80", "--faults", "1"]) == 1
    assert "0 of 1" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--sizes", "63"], ["--faults", "1", "2", "--sizes", "80"]])
def test_what_cannot_be_is_refused(wrong, capsys):
    assert detection.main(wrong) == 2
    assert "--" in capsys.readouterr().err
