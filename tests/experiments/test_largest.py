# SPDX-License-Identifier: MIT
"""Question 2: N by the memory alone, the search, and products that really fill the memory they are given."""

from __future__ import annotations

import numpy as np
import pytest
from support.recorded_lines import largest_lines, text_of, written_run

from experiments.common.cuda import CallFailed, EmulatedRuntime
from experiments.lectures import largest, largest_runs
from hybrid.errors import CheckFailed
from hybrid.kernels.catalogue import named
from hybrid.reporting import jsonl

MEMORY = 100_000  # bytes


@pytest.mark.parametrize(
    ("memory", "dtype", "n"),
    [
        (1 << 20, "float32", 295),
        (1 << 20, "float64", 209),
        (4 << 30, "float32", 18_918),
        (12, "float32", 1),
        (11, "float32", 0),
        (3 * 8 * 50**2, "float64", 50),
        (3 * 8 * 50**2 - 1, "float64", 49),
    ],
)
def test_n_by_the_memory_alone(memory, dtype, n):
    assert largest.theoretical(memory, dtype) == n


@pytest.mark.parametrize("limit", [0, 1, 2, 63, 64, 98, 99, 100])
def test_the_search_finds_the_largest_that_works(limit):
    tried = []

    def works(n):
        tried.append(n)
        return n <= limit

    assert largest_runs.last_that(works, 100) == limit
    assert len(tried) <= 14
    assert all(1 <= n <= 100 for n in tried)


def test_three_matrices_fit_or_do_not():
    runtime = EmulatedRuntime(3 * 4 * 50**2)
    assert largest_runs.allocates(runtime, "float32", 50)
    assert not largest_runs.allocates(runtime, "float32", 51)
    assert runtime.memory() == 3 * 4 * 50**2


@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
@pytest.mark.needs("compiler")
def test_a_product_in_core_is_checked_whole(monkeypatch, piece_bytes):
    monkeypatch.setattr(largest_runs, "PIECE_BYTES", piece_bytes)
    runtime = EmulatedRuntime(MEMORY)
    assert largest_runs.run_in_core(runtime, named("tiled"), 40, "float32") > 0
    assert runtime.memory() == MEMORY
    with pytest.raises(CallFailed, match="out of memory"):
        largest_runs.run_in_core(runtime, named("tiled"), 92, "float32")
    launch = runtime.launch

    def almost(kernel, a, b, c):
        launch(kernel, a, b, c)
        c[-1, 17] += 1

    monkeypatch.setattr(runtime, "launch", almost)
    with pytest.raises(CheckFailed, match=r"kernel tiled is wrong for float32 40×40"):
        largest_runs.run_in_core(runtime, named("tiled"), 40, "float32")


@pytest.mark.needs("compiler")
def test_measured_without_a_gpu():
    lines = list(largest.measured(EmulatedRuntime(MEMORY), ["float32", "float64"], None, MEMORY, times=3))
    assert [(line["dtype"], line["part"], line.get("kernel")) for line in lines] == [
        (dtype, part, kernel)
        for dtype in ("float32", "float64")
        for part, kernel in (
            ("theoretical", None), ("in core", "naive"), ("in core", "tiled"), ("resident", "blas"), ("out of core", "blas")
        )
    ]  # fmt: skip
    by_memory, without, with_shared, resident, beyond = (line["n"] for line in lines[:5])
    assert by_memory == 91
    assert without == with_shared == 91, "shared memory makes no difference: it is the same three matrices"
    assert 85 <= resident <= 91
    assert beyond == 273
    assert lines[4]["ended_by"] == "--times 3 ends it"


@pytest.mark.exhaustive
@pytest.mark.needs("compiler")
def test_the_host_s_memory_may_end_it(monkeypatch):
    monkeypatch.setenv("HYBRID_HOST_MEMORY", "98M")
    line = list(largest.measured(EmulatedRuntime(MEMORY), ["float64"], ["naive"], MEMORY, times=1000))[-1]
    assert line["part"] == "out of core"
    assert line["ended_by"] == largest_runs.HOST_ENDS


def test_a_wrong_product_of_the_runner_is_no_answer(monkeypatch):
    monkeypatch.setattr("hybrid.devices.cpu.blas", lambda a, b, c: c.fill(1))
    with pytest.raises(CheckFailed, match=r"the runner's product of float64 \d+×\d+ is wrong"):
        list(largest_runs.RunnerAlone("emulate", MEMORY).lines("float64", 64, 1))


@pytest.mark.parametrize("gpu", ["NVIDIA H200", None])
def test_table_and_picture(tmp_path, capsys, gpu):
    pytest.importorskip("matplotlib")
    path = written_run(tmp_path / "l.jsonl", "largest", largest_lines(), gpu=gpu)
    picture = tmp_path / "p.svg"
    assert largest.main(["--from", path, "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "floor(sqrt(12,000,000 / (3 · 4)))" in out
    assert "and right, 3 short" in out
    assert "4 × 1000; --times 4 ends it" in out
    assert ("multiplied in 500 ms and right" in out) is (gpu is not None)
    text = text_of(picture)
    assert all(words in text for words in ("float32", "float64", "997", "4,000", "2,828", *largest.PARTS.values()))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--gpu-memory", "10", "--device", "emulate"], 1, "10 bytes hold no three numbers"),
        (["--gpu-memory", "much", "--device", "emulate"], 2, "'much' is not a number of bytes"),
        (["--gpu-memory", "8G", "--device", "emulate"], 2, "--gpu-memory up to 12.0 MiB without a GPU"),
        (["--from", "nowhere"], 2, "nowhere cannot be read: No such file"),
        (["--kernels", "nosuch", "--device", "emulate"], 2, "unknown kernel 'nosuch'"),
        (["--kernels", "blas", "--device", "emulate"], 2, "kernel blas runs on cpu, but the device asked for is emulate"),
        (["--kernels", "matvec", "--device", "emulate"], 2, "kernel matvec multiplies by a vector"),
        (["--kernels", "tensor", "--device", "emulate"], 2, "kernel tensor does not take float32"),
    ],
)
@pytest.mark.needs("compiler")
def test_wrong_usage_is_refused(arguments, code, said, capsys):
    assert largest.main(arguments) == code
    assert said in capsys.readouterr().err


@pytest.mark.gpu
def test_measured_on_a_gpu(tmp_path):
    path = str(tmp_path / "l.jsonl")
    assert largest.main(["--device", "cuda", "--gpu-memory", "64M", "--json", path, "--times", "2"]) == 0
    found = {(line["dtype"], line["part"]): line["n"] for line in jsonl.read(path) if line["part"] != "end"}
    assert found["float32", "theoretical"] == 2364
    assert found["float32", "in core"] == 2364
    assert found["float32", "out of core"] == 4728
    assert np.all([found[dtype, "resident"] <= found[dtype, "theoretical"] for dtype in ("float32", "float64")])
