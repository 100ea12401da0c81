# SPDX-License-Identifier: MIT
"""The two-dimensional lecture: its tables and its roofline exactly, what is said of recorded lines, the picture."""

from __future__ import annotations

from statistics import fmean

import pytest
from support.recorded_lines import lines_2d, text_of, written_run

from experiments.common.cuda import EmulatedRuntime, on
from experiments.lectures import roofline, two_dimensions
from hybrid.devices.c_loops import compiled_loops
from hybrid.reporting import jsonl

# --- the lecture's numbers


def test_the_averages_and_the_factors_are_the_lecture_s():
    for program, runs in two_dimensions.LECTURE_MS.items():
        assert len(runs) == 5
        assert fmean(runs) == pytest.approx(two_dimensions.LECTURE_MEAN_MS[program], abs=0.005)
    for program, factor in two_dimensions.LECTURE_TIMES_FASTER.items():
        assert int(two_dimensions.LECTURE_MEAN_MS["MM-CPU"] / two_dimensions.LECTURE_MEAN_MS[program]) == factor
    assert two_dimensions.LECTURE_MEAN_MS == {"MM-CPU": 40504.82, "MM-GPU-GM": 52.46, "MM-GPU-SM": 24.34}


def test_the_roofline_s_argument():
    roof = roofline.LECTURE
    assert roof.numbers == 36e9
    assert roof.bound(1 / 4) == 36e9
    assert roof.numbers / roof.operations == 0.036
    assert roof.bound(1000) == 1e12
    assert roofline.INTENSITY == {"MM-CPU": 0.25, "MM-GPU-GM": 0.25, "MM-GPU-SM": 8.0}


def test_the_lecture_s_own_program_is_above_its_bound():
    """52.46 ms with all copies are 41 GF/s: caches deliver what memory does not."""
    point = roofline.point("MM-GPU-GM", 1024, 0.05246)
    assert point.operations == pytest.approx(40.94e9, rel=1e-3)
    assert point.operations > roofline.LECTURE.bound(point.intensity)


@pytest.mark.parametrize(("width", "elements"), [(1024, 0), (1000, 15_936), (72, 1088), (31, 961)])
def test_elements_that_the_lecture_s_grid_leaves_out(width, elements):
    assert two_dimensions.left_out(width) == elements


# --- what is said


def test_times_faster(tmp_path, capsys):
    path = written_run(tmp_path / "l.jsonl", "lecture_2d", lines_2d())
    assert two_dimensions.main(["--from", path]) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert ["MM-CPU", "1024", *(f"{ms:.2f}" for ms in two_dimensions.LECTURE_MS["MM-CPU"]), "40504.82", "lecture"] in rows
    assert ["MM-GPU-GM", "1024", "52.5", "52.4", "52.4", "52.4", "52.6", "52.46", "772", "lecture"] in rows
    assert ["1024", *["1.000"] * 5, "1.000", "4000", "0.500", "here"] in rows
    above = next(row for row in rows if row[:2] == ["MM-GPU-GM", "0.25"])
    assert above[2:6] == ["1,000", "GF/s", "2,147", "GF/s"]
    assert "caches" in above
    said = " ".join(" ".join(row) for row in rows)
    assert "MM-GPU-SM at width 1000, no multiple of 32: right; the lecture's leaves 15,936 of 1,000,000 elements out" in said


@pytest.mark.parametrize(("gpu", "width"), [(None, 256), (None, 1024), ("NVIDIA H200", 512)])
def test_no_factor_without_a_gpu_or_for_another_width(tmp_path, gpu, width):
    path = written_run(tmp_path / "l.jsonl", "lecture_2d", lines_2d(width), gpu=gpu)
    results = two_dimensions.Results(list(jsonl.read(path))[:-1])
    assert [results.times_faster(program) for program in two_dimensions.PROGRAMS] == [None] * 3
    if gpu is None:
        table = "\n".join(results.printed())
        assert table.count("right, on the CPU's CUDA runtime") == 2
        assert "2.000" not in table
        assert (
            "MM-GPU-GM  Time to generate:  2.0 ms, 2.0 ms, 2.0 ms, 2.0 ms, 2.0 ms (on the CPU's CUDA runtime: not a GPU's time)"
            in table
        )
    else:
        assert "  MM-GPU-SM  Time to generate:  1.0 ms, 1.0 ms, 1.0 ms, 1.0 ms, 1.0 ms" in list(results.printed())


def test_without_a_c_compiler_the_rest_is_there(tmp_path, capsys):
    path = written_run(tmp_path / "l.jsonl", "lecture_2d", list(lines_2d())[1:])
    assert two_dimensions.main(["--from", path]) == 0
    assert "MM-GPU-SM" in capsys.readouterr().out


@pytest.mark.needs("compiler")
@pytest.mark.needs("c compiler")
def test_measured_without_a_gpu(monkeypatch, capsys):
    runtime = EmulatedRuntime(1 << 24)
    monkeypatch.setattr(roofline, "COPIED", (64, 64))
    monkeypatch.setattr(roofline, "MULTIPLIED", {"emulate": 64})
    found = list(on(runtime, two_dimensions.measured(runtime, cpu_width=40, width=50, ragged=72)))
    assert [(line.get("program"), line.get("width")) for line in found] == [
        ("MM-CPU", 40), ("MM-GPU-GM", 50), ("MM-GPU-SM", 50), ("MM-GPU-GM", 72), ("MM-GPU-SM", 72), (None, None)
    ]  # fmt: skip
    assert len(found[0]["runs"]) == 5
    assert set(two_dimensions.Results(found).programs) == set(two_dimensions.PROGRAMS)
    assert found[-1]["roof"].startswith("one core of ")
    monkeypatch.setenv("CC", "no-such")
    compiled_loops.cache_clear()
    assert next(two_dimensions.measured(EmulatedRuntime(1 << 24), 40, 64, 72))["program"] == "MM-GPU-GM"
    assert "MM-CPU is left out: CC=no-such" in capsys.readouterr().err


# --- the picture


@pytest.mark.parametrize("gpu", ["NVIDIA H200", None])
def test_the_picture(tmp_path, gpu):
    pytest.importorskip("matplotlib")
    path = written_run(tmp_path / "l.jsonl", "lecture_2d", lines_2d(), gpu=gpu)
    picture = tmp_path / "p.svg"
    assert two_dimensions.main(["--from", path, "--picture", str(picture)]) == 0
    text = text_of(picture)
    assert all(words in text for words in ("40,505", "52.46", "24.34", "MM-CPU, here", "4,000", "C2075 (lecture)", "GF/s", "ms"))
    assert ("MM-GPU-SM, here" in text) is (gpu is not None)
    picture = tmp_path / "p.png"
    assert two_dimensions.main(["--from", path, "--picture", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_program_s_name_keeps_off_the_slope_of_its_roof(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    panel = figure.subplots()
    roof = roofline.Roof("a CPU", 20e9, 60e9)
    below, above = (roofline.Point(name, 0.25, speed) for name, speed in (("below", 1e9), ("above", 30e9)))
    roofline.draw(panel, roof, [below, above], [])
    sides = {text.get_text(): text.get_ha() for text in panel.texts}
    assert (sides["below"], sides["above"]) == ("left", "right")
    assert any("caches deliver" in text for text in sides), "why a program is above it"


@pytest.mark.gpu
def test_measured_on_a_gpu(tmp_path):
    path = str(tmp_path / "l.jsonl")
    assert two_dimensions.main(["--quick", "--device", "cuda", "--json", path]) == 0
    results = two_dimensions.Results(list(jsonl.read(path))[:-1])
    assert all(len(line["runs"]) == 5 and line["kernel_seconds"] for line in results.ragged.values())
    assert roofline.roof_of(results.lines).bytes > 0
