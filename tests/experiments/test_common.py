# SPDX-License-Identifier: MIT
"""What the lectures' scripts share: devices and their calls, checked timings, recorded runs, options."""

from __future__ import annotations

import argparse
import csv
import json
import sys

import numpy as np
import pytest
from support.commands import start, successful
from support.needs import skip_without
from support.recorded_lines import pmpp_lines, spread, written_run

from experiments.common import cli, plots, product_check, timing, wording
from experiments.common.cuda import CallFailed, EmulatedRuntime, GpuRuntime, runtime_for
from experiments.common.product_check import refuse_wrong
from experiments.common.results import Results
from experiments.lectures import largest, pmpp, siegel, two_dimensions
from experiments.start import SCRIPTS
from hybrid.errors import CheckFailed, DeviceUnavailable, UsageError
from hybrid.kernels.catalogue import named


@pytest.fixture
def runtime():
    skip_without("compiler")
    return EmulatedRuntime(1 << 20)


# --- devices


def test_calls_on_the_cpu_s_runtime(runtime):
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    on_a, on_b, on_c = (runtime.allocate(*shape, "float64") for shape in ((2, 3), (3, 4), (2, 4)))
    assert runtime.memory() == (1 << 20) - 8 * (6 + 12 + 8)
    runtime.copy(on_a, a)
    runtime.copy(on_b, b)
    runtime.poison(on_c)
    assert np.isnan(on_c).all()
    runtime.launch(named("tiled"), on_a, on_b, on_c)
    runtime.synchronize()
    c = np.empty((2, 4))
    runtime.copy(c, on_c)
    np.testing.assert_array_equal(c, a @ b)
    runtime.release()
    assert runtime.memory() == 1 << 20


def test_memory_ends_at_the_cap():
    runtime = EmulatedRuntime(100)
    runtime.allocate(3, 4, "float64")
    with pytest.raises(CallFailed, match=r"^out of memory$"):
        runtime.allocate(1, 1, "float64")
    runtime.release()
    runtime.allocate(5, 5, "float32")


@pytest.mark.needs("compiler")
def test_without_a_gpu_it_is_said_what_stands_for_it(monkeypatch, capsys):
    def none_here():
        raise DeviceUnavailable("no GPU in this test")

    monkeypatch.setattr("experiments.common.cuda.usable_gpus", none_here)
    assert runtime_for("auto", 64).device == "emulate"
    assert "no GPU in this test: the kernels run on the CPU's CUDA runtime" in capsys.readouterr().err
    with pytest.raises(DeviceUnavailable, match="no GPU in this test"):
        runtime_for("cuda")


# --- checks and timings


@pytest.mark.parametrize("whole", [10**9, 10])
def test_a_wrong_product_is_found(monkeypatch, whole):
    monkeypatch.setattr(product_check, "WHOLE", whole)
    rng = np.random.default_rng()
    a, b = rng.random((40, 30), np.float32), rng.random((30, 50), np.float32)
    right = a @ b
    refuse_wrong("it", a, b, right)
    for wrong in (np.nan, right[-1, -1] * 1.001):
        c = right.copy()
        c[-1, -1] = wrong
        with pytest.raises(CheckFailed, match="it is wrong for float32 40×30 · 30×50: "):
            refuse_wrong("it", a, b, c)


def test_nan_is_found_where_nobody_looks(monkeypatch):
    monkeypatch.setattr(product_check, "WHOLE", 1)
    monkeypatch.setattr(product_check, "SAMPLED", 0)
    a = np.ones((9, 9))
    c = a @ a
    c[3, 4] = np.nan
    with pytest.raises(CheckFailed, match="1 elements"):
        refuse_wrong("it", a, a, c)


@pytest.mark.parametrize("timed", ["kernel_seconds", "whole_seconds"])
def test_a_kernel_that_writes_nothing_is_noticed(runtime, monkeypatch, timed):
    a, b = timing.matrices("uniform", "float32", 20, 10, 30)
    seconds = getattr(timing, timed)(runtime, named("naive"), a, b, 1)
    assert len(seconds) == 1
    assert seconds[0] > 0
    monkeypatch.setattr(EmulatedRuntime, "allocate", lambda self, rows, columns, dtype: np.full((rows, columns), np.nan, dtype))
    monkeypatch.setattr(EmulatedRuntime, "launch", lambda *_: None)
    with pytest.raises(CheckFailed, match="kernel naive is wrong"):
        getattr(timing, timed)(runtime, named("naive"), a, b, 1)
    assert runtime.memory() == 1 << 20, "what was allocated is given back"


def test_a_kernel_in_other_blocks(runtime):
    kernel = timing.with_block("naive", 32)
    assert kernel.forms["float32"][0].block == (32, 32)
    a, b = timing.matrices("index", "float32", 45, 45, 45)
    assert a[2, 3] == b[2, 3] == 3 + 2 * 45
    timing.kernel_seconds(runtime, kernel, a, b, 1)


# --- runs


class Anything(Results):
    """An experiment of lines with a number."""

    command = "lecture_x"
    schemas = {"p": {}}  # noqa: RUF012


def test_the_last_run_that_came_to_its_end_counts(tmp_path):
    path = written_run(tmp_path / "l.jsonl", "lecture_x", [{"part": "p", "n": 1}], run="1")
    written_run(path, "lecture_x", [{"part": "p", "n": 2}, {"part": "p", "n": 3}], run="2")
    written_run(path, "another", [{"part": "p", "n": 4}], run="3")
    written_run(path, "lecture_x", [{"part": "p", "n": 5}], run="4", ended=False)
    assert [line["n"] for line in Anything.recorded(path)] == [2, 3]
    path = written_run(tmp_path / "m.jsonl", "lecture_x", [{"part": "p", "n": 5}], ended=False)
    with pytest.raises(UsageError, match=r"has no run of scripts/lecture_x\.py that came to its end"):
        Anything.recorded(path)
    with pytest.raises(UsageError, match=r"has no lines of scripts/lecture_pmpp\.py"):
        pmpp.Results.recorded(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seconds": None}, "what it has as seconds cannot be"),
        ({"part": "exercise 9"}, "it has no part that the script writes"),
        ({"machine": 5}, "what it has as machine cannot be"),
    ],
)
def test_a_line_that_the_script_does_not_write_is_refused(change, said, tmp_path, capsys):
    path = tmp_path / "l.jsonl"
    written_run(path, "lecture_pmpp", [{"part": "exercise 2", "kernel": "matvec", "n": 9, "seconds": spread(1.0)}])
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), **change}), *others]))
    assert pmpp.main(["--from", str(path)]) == 2
    assert capsys.readouterr().err.endswith(f"{path}, a line of lecture_pmpp: {said}\n")


@pytest.mark.parametrize(("script", "option"), [(pmpp, "--size"), (two_dimensions, "--width"), (siegel, "--size")])
def test_matrices_that_the_host_cannot_hold_are_refused(runtime, script, option, capsys):
    assert script.main(["--device", "emulate", option, "4000000"]) == 1
    assert "A, B and C take " in capsys.readouterr().err


def test_an_interrupted_script_says_so_in_one_line(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pmpp, "work", interrupted)
    assert pmpp.main([]) == 1
    assert capsys.readouterr().err.endswith(": interrupted\n")


def test_a_script_that_a_launcher_starts_several_times_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert pmpp.main(["--launch", "1", "1", "1", "1"]) == 2
    assert "started this 2 times, and each would do all of it: start it alone" in capsys.readouterr().err
    monkeypatch.setenv("PMI_RANK", "1")
    assert pmpp.main(["--launch", "1", "1", "1", "1"]) == 2
    assert not capsys.readouterr().err, "rank 0 says it for all"


@pytest.mark.parametrize("script", [pmpp, largest])
@pytest.mark.needs("compiler")
def test_a_run_that_lacks_lines_is_refused(script, monkeypatch, tmp_path, capsys):
    path = tmp_path / "lines.jsonl"
    assert script.main(["--quick", "--device", "emulate", "--json", str(path)]) == 0
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[2:]))
    capsys.readouterr()
    assert script.main(["--from", str(path)]) == 2
    assert f"{path} lacks lines that a whole run has" in capsys.readouterr().err


def test_the_caption_names_machine_and_date():
    line = {"gpu": None, "machine": {"processor": "A CPU", "cores": 4}, "date": "2026-11-21T10:00:00+00:00"}
    assert Results([line, line]).caption() == "A CPU, 4 cores, no GPU; 2026-11-21"
    assert Results([line, {**line, "gpu": "NVIDIA H200"}]).caption() == "NVIDIA H200, A CPU, 4 cores; 2026-11-21"


@pytest.mark.parametrize(
    ("seconds", "said"), [(7200, "2 h"), (90, "1.5 min"), (1.5, "1.5 s"), (0.0123456, "12.35 ms"), (2e-6, "2 µs")]
)
def test_seconds_to_read(seconds, said):
    assert wording.duration(seconds) == said


def test_a_run_is_recorded_line_by_line(runtime, tmp_path):
    path = tmp_path / "p.jsonl"
    assert pmpp.main(["--device", "emulate", "--size", "16", "--json", str(path)]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["device"] for line in lines if line["part"] != "end"} == {"emulate"}
    assert lines[-1]["part"] == "end"
    assert len({line["run"] for line in lines}) == 1
    assert all(line["machine"]["cores"] and line["date"] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--picture", "x.pdf"], 2, "x.pdf: pictures are .png or .svg"),
        (["--picture", "nowhere/x.svg"], 2, "there is no folder"),
        (["--json", "nowhere/x.jsonl"], 2, "there is no folder"),
        (["--from", "nowhere.jsonl"], 2, "nowhere.jsonl cannot be read: No such file"),
        pytest.param(["--device", "emulate", "--size", "6"], 2, "a multiple of 4", marks=pytest.mark.needs("compiler")),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, code, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert pmpp.main(arguments) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("script", ["lecture_pmpp", "lecture_2d", "lecture_hochberg", "lecture_siegel", "largest"])
def test_help(script):
    done = successful(start([sys.executable, SCRIPTS / f"{script}.py"], "--help"))
    assert all(option in done.stdout for option in ("--device", "--quick", "--picture", "--json", "--from"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--devce", "cuda"], "unknown option --devce: did you mean --device?"),
        (["--device", "gpu"], "argument --device: unknown choice 'gpu': did you mean 'cuda'?"),
        (["--device", "x"], "argument --device: unknown choice 'x': one of auto, cuda, emulate"),
    ],
)
def test_what_was_meant_is_suggested_in_one_line(arguments, said, capsys):
    assert pmpp.main(arguments) == 2
    assert capsys.readouterr().err.partition(": ")[2] == f"{said}\n"


def test_sizes_on_the_command_line():
    assert cli.as_sizes("8192") == (8192, 8192, 8192)
    assert cli.as_sizes("1000x8000x7000") == (1000, 8000, 7000)
    for text in ("3x4", "0", "-1", "x", "1e3"):
        with pytest.raises(argparse.ArgumentTypeError):
            cli.as_sizes(text)


# --- on a GPU


@pytest.mark.gpu
def test_calls_on_a_gpu(real_gpus):
    runtime = GpuRuntime(real_gpus[0], cap=1 << 20)
    a, b = timing.matrices("uniform", "float32", 100, 60, 90)
    assert len(timing.kernel_seconds(runtime, named("tiled"), a, b, 3)) == 3
    assert len(timing.whole_seconds(runtime, timing.with_block("naive", 32), a, b, 2)) == 2
    assert runtime.memory() == 1 << 20
    on_a, on_b, on_c = (runtime.allocate(64, 64, "float64") for _ in range(3))
    c = np.random.default_rng().random((64, 64))
    runtime.copy(on_a, c)
    runtime.copy(on_b, np.eye(64))
    runtime.launch(named("tensor"), on_a, on_b, on_c)
    runtime.poison(on_c)
    assert all(seconds > 0 for seconds in runtime.seconds_each(named("tensor"), on_a, on_b, on_c, 7, 2))
    again = np.empty_like(c)
    runtime.copy(again, on_c)
    np.testing.assert_array_equal(again, c)
    runtime.release()
    with pytest.raises(CallFailed, match=r"^out of memory$"):
        runtime.allocate(1 << 10, 1 << 10, "float32")
    uncapped = GpuRuntime(real_gpus[0])
    with pytest.raises(CallFailed, match=r"^out of memory$"):
        uncapped.allocate(1 << 22, 1 << 20, "float64")
    assert uncapped.allocate(10, 10, "float64").shape == (10, 10)
    uncapped.release()


def test_a_table_for_a_spreadsheet(tmp_path, capsys):
    path = written_run(tmp_path / "l.jsonl", "lecture_pmpp", pmpp_lines())
    assert pmpp.main(["--from", path, "--csv", str(tmp_path / "l.csv")]) == 0
    with open(tmp_path / "l.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 11
    first = {"device": "cuda", "gpu": "NVIDIA H200", "part": "exercise 1", "kernel": "naive", "form": "square", "n": "1024"}
    assert {**rows[0], **first} == rows[0]
    assert float(rows[0]["seconds median"]) == 1e-3
    assert (rows[-1]["kernel"], rows[-1]["form"], float(rows[-1]["seconds max"])) == ("matvec_warp", "", 1e-3)
    assert not {"versions", "machine", "arguments", "run"} & set(rows[0])
    assert rows[0]["processor"]


def test_a_table_has_a_table_s_name(tmp_path, capsys):
    path = written_run(tmp_path / "l.jsonl", "lecture_pmpp", pmpp_lines())
    assert pmpp.main(["--from", path, "--csv", str(tmp_path / "l.txt")]) == 2
    assert "must end in .csv" in capsys.readouterr().err


def test_colours_differ_in_lightness():
    """So that nobody needs to tell red from green, and a copy in grey still shows which is which."""

    def lightness(color):
        red, green, blue = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
        return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2

    dark, middle, light = sorted(map(lightness, (plots.HERE, plots.LECTURE, plots.OTHER)))
    assert (middle + 0.05) / (dark + 0.05) > 1.5
    assert (light + 0.05) / (middle + 0.05) > 1.5


def test_bars_begin_at_a_power_of_ten():
    panel = pytest.importorskip("matplotlib.figure").Figure().subplots()
    plots.bars(panel, ["a", "b"], [2.9, 40_505], ["2.9", "40,505"], [plots.HERE] * 2)
    assert panel.get_xlim()[0] == 1
    assert [text.get_text() for text in panel.get_xticklabels()] == ["1", "100", "10,000"]
