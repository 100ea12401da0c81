# SPDX-License-Identifier: MIT
"""The three programs' lecture: its numbers, the memory analysis counted, what is said of recorded lines, the picture."""

from __future__ import annotations

import numpy as np
import pytest
from support.recorded_lines import siegel_lines, text_of, written_run

from experiments.common.cuda import EmulatedRuntime
from experiments.common.timing import matrices
from experiments.lectures import siegel, siegel_results
from hybrid.errors import CheckFailed, HybridError
from hybrid.reporting import jsonl


def test_the_memory_analysis():
    assert siegel_results.formulas("matmul1") == ("m", "n")
    assert siegel_results.formulas("matmul2") == ("ceil(m / 16)", "ceil(n / 16)")
    assert siegel_results.reads("matmul1") == (8000, 8000)
    assert siegel_results.reads("matmul2") == (500, 500)
    assert siegel_results.reads("matmul1", (100, 60, 90)) == (90, 100)
    assert siegel_results.reads("matmul2", (100, 60, 90)) == (6, 7)


@pytest.mark.needs("compiler")
def test_the_loads_are_counted():
    for line in siegel.loads():
        of_a, of_b = siegel_results.reads(line["program"], line["shape"])
        assert (line["a"], line["b"]) == ((of_a,) * 3, (of_b,) * 3)


def test_what_was_not_measured_is_extrapolated_and_says_so(tmp_path, capsys):
    path = written_run(tmp_path / "l.jsonl", "lecture_siegel", siegel_lines())
    assert siegel.main(["--from", path]) == 0
    out = capsys.readouterr().out
    rows = [row.split() for row in out.splitlines()]
    assert "512,000,000,000 multiplications" in out
    assert "> 1 h  8.533 min, extrapolated by n³ from 1 s at 1000; not measured" in out
    assert "51.2 s, extrapolated by n³ from 100 ms at 1000; not measured" in out
    assert ["matmul1", "13.8", "s", "360", "ms,", "760", "ms", "with", "allocation", "and", "copies"] in rows
    assert ["ratio", "2.9", "2.00"] in rows
    assert ["matmul1", "m", "n", "8000", "90,", "100"] in rows
    assert ["matmul2", "ceil(m", "/", "16)", "ceil(n", "/", "16)", "500", "6,", "7"] in rows
    assert "2 devices, a rank each: multiply 100 ms, host to host 250 ms" in out
    assert "2 devices, a process for all: 90 ms from the first launch to the last end" in out


def test_without_a_gpu_the_kernels_have_no_times(tmp_path, capsys):
    path = written_run(tmp_path / "l.jsonl", "lecture_siegel", siegel_lines(200), gpu=None)
    assert siegel.main(["--from", path]) == 0
    out = capsys.readouterr().out
    assert out.count("right at 200, on the CPU's CUDA runtime") == 2
    assert out.count("right, pretended by the CPU") == 4
    assert "ratio" not in out
    assert "360 ms" not in out


def test_small_matrices_say_nothing_of_8000(tmp_path, capsys):
    lines = [{**line, "n": 200} if line["part"] == "seq" else line for line in siegel_lines(200)]
    path = written_run(tmp_path / "l.jsonl", "lecture_siegel", lines, gpu=None)
    assert siegel.main(["--from", path]) == 0
    out = capsys.readouterr().out
    assert out.count("at 200, which says nothing of 8000") == 2
    assert "extrapolated" not in out


def test_without_compilers_the_rest_is_there(tmp_path, capsys):
    there = [line for line in siegel_lines() if line["part"] not in ("seq", "loads")]
    assert siegel.main(["--from", written_run(tmp_path / "l.jsonl", "lecture_siegel", there)]) == 0
    out = capsys.readouterr().out
    assert out.count("not measured") == 2
    assert out.count("not counted") == 2


# --- several devices


@pytest.mark.parametrize(("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_how_many_devices_are_tried(most, counts):
    assert siegel.counts_up_to(most) == counts


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.needs("compiler")
def test_one_process_and_several_devices(devices, monkeypatch):
    a, b = matrices("uniform", "float64", 50, 20, 30)
    runtimes = [EmulatedRuntime(1 << 20) for _ in range(devices)]
    assert len(siegel.by_one_process(runtimes, "tiled", a, b, 5)) == 1
    assert all(runtime.memory() == 1 << 20 for runtime in runtimes)
    launched = []
    monkeypatch.setattr(runtimes[-1], "launch", lambda *operands: launched.append(operands))
    with pytest.raises(CheckFailed, match=f"tiled on {devices} devices is wrong"):
        siegel.by_one_process(runtimes, "tiled", a, b, 5)
    assert launched


@pytest.mark.launcher
@pytest.mark.needs("compiler")
def test_several_ranks():
    run = siegel.by_ranks(2, "emulate", "tiled", 40, 1)
    assert (run["ranks"], run["kernel"], run["n"], run["check"]["ok"]) == (2, "tiled", 40, True)
    with pytest.raises(HybridError, match=r"2 ranks failed: .*unknown kernel 'tile'"):
        siegel.by_ranks(2, "emulate", "tile", 40, 1)


@pytest.mark.needs("compiler")
def test_the_rows_are_shared_out(monkeypatch):
    seen = []
    runtime = EmulatedRuntime(1 << 20)
    launch = runtime.launch

    def watched(kernel, a, b, c):
        seen.append((a.shape, b.shape, c.shape))
        launch(kernel, a, b, c)

    monkeypatch.setattr(runtime, "launch", watched)
    a, b = np.ones((7, 4)), np.ones((4, 5))
    siegel.by_one_process([runtime, runtime], "naive", a, b, 1)
    assert seen == [((4, 4), (4, 5), (4, 5)), ((3, 4), (4, 5), (3, 5))]


# --- the picture


@pytest.mark.parametrize("gpu", ["NVIDIA H200", None])
def test_the_picture(tmp_path, gpu):
    pytest.importorskip("matplotlib")
    path = written_run(tmp_path / "l.jsonl", "lecture_siegel", siegel_lines(), gpu=gpu)
    picture = tmp_path / "p.svg"
    assert siegel.main(["--from", path, "--picture", str(picture)]) == 0
    text = text_of(picture)
    assert all(words in text for words in ("seq, lecture", "13.8 s", "4.8 s", "extrapolated from 1000", "seconds", "8000", "500"))
    assert ("matmul1, here" in text) is (gpu is not None)
    assert ("matmul2 at 8000 by number of GPUs" in text) is (gpu is not None)


def test_all_points_of_the_picture_lie_inside_of_it(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    panel = figure.subplots()
    path = written_run(tmp_path / "l.jsonl", "lecture_siegel", [line for line in siegel_lines() if line.get("devices", 1) == 1])
    results = siegel_results.Results(list(jsonl.read(path))[:-1])
    results._draw_several(panel)
    assert [list(curve.get_ydata()) for curve in panel.lines] == [[0.18], [0.2]]
    assert panel.get_ylim()[1] > 1.1 * 0.2


@pytest.mark.gpu
def test_measured_on_a_gpu(tmp_path):
    path = str(tmp_path / "l.jsonl")
    assert siegel.main(["--quick", "--size", "300", "--device", "cuda", "--json", path]) == 0
    results = siegel_results.Results(list(jsonl.read(path))[:-1])
    assert set(results.programs) == {"matmul1", "matmul2"}
    assert all(line["whole"]["median"] > line["seconds"]["median"] > 0 for line in results.programs.values())
    assert {way for way, _ in results.several} == {"one process", "ranks"}
