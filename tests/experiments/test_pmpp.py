# SPDX-License-Identifier: MIT
"""The launch arithmetic of the documents, exactly; exercises 1 and 2 on the CPU's runtime; the picture."""

from __future__ import annotations

import numpy as np
import pytest
from support.recorded_lines import pmpp_lines, text_of, written_run

from experiments.common.cuda import EmulatedRuntime
from experiments.lectures import launch_arithmetic, pmpp
from hybrid.errors import UsageError
from hybrid.reporting import jsonl

# --- exercise 3, and every launch the documents speak of


@pytest.mark.parametrize(
    ("launch", "block", "grid", "blocks", "threads", "passing"),
    [
        ((150, 300, 16, 32), 512, (19, 5), 95, 48_640, 45_000),
        ((70, 200, 32, 16), 512, (7, 5), 35, 17_920, 14_000),
        ((100, 500, 16, 16), 256, (32, 7), 224, 57_344, 50_000),
        ((1024, 1024, 16, 16), 256, (64, 64), 4096, 1_048_576, 1_048_576),
        ((1, 1, 32, 32), 1024, (1, 1), 1, 1024, 1),
    ],
)
def test_a_launch(launch, block, grid, blocks, threads, passing):
    numbers = launch_arithmetic.covering(*launch)
    assert list(numbers.values()) == [block, grid, blocks, threads, passing, threads - passing]


def test_a_tile_s_loads_and_operations():
    assert launch_arithmetic.tile_phase(16) == {"loads": 512, "operations": 8192}


def test_the_documents_numbers_are_the_computed_ones():
    for _, computed, said in launch_arithmetic.LECTURES:
        assert {name: computed[name] for name in said} == said


def test_the_calculator(capsys):
    assert pmpp.main(["--launch", "150", "300", "16", "32"]) == 0
    words = capsys.readouterr().out.split()
    assert {"512", "19×5", "95", "48,640", "45,000", "3,640"} <= set(words)
    assert "tiles" not in words
    assert pmpp.main(["--launch", "1024", "1024", "16", "16"]) == 0
    assert {"4,096", "512", "8,192", "2/16"} <= set(capsys.readouterr().out.split())


def test_a_block_that_no_gpu_takes(capsys):
    with pytest.raises(UsageError, match="64×32 has 2048 threads, and 1024 are the most"):
        launch_arithmetic.covering(9, 9, 64, 32)
    assert pmpp.main(["--launch", "9", "9", "64", "32"]) == 2


def test_a_grid_that_no_gpu_takes(capsys):
    too_many = "CUDA takes at most 65,535 blocks in y: several launches, or several elements a thread"
    for rows, said in ((65_535 * 32, False), (65_535 * 32 + 1, True)):
        assert pmpp.main(["--launch", str(rows), "9", "16", "32"]) == 0
        assert (too_many in capsys.readouterr().out) is said


def test_both_ways_of_figure_2_1(capsys):
    assert pmpp.main(["--launch", "70", "200", "32", "16"]) == 0
    out = capsys.readouterr().out
    assert "dim3 block(32, 16), grid(7, 5);" in out
    assert "the other way round, blocks of 16×32: a grid of 13×3, 39 blocks" in out


def test_the_blocks_over_the_matrix(tmp_path, capsys):
    picture = tmp_path / "grid.svg"
    assert pmpp.main(["--launch", "70", "200", "32", "16", "--picture", str(picture)]) == 0
    text = text_of(picture)
    assert "blocks of x = 32, y = 16: 7 × 5 = 35 blocks, 3,920 threads lie outside of C" in text
    assert "blocks of x = 16, y = 32: 13 × 3 = 39 blocks, 5,968 threads lie outside of C" in text
    assert "12,2" in text
    assert pmpp.main(["--launch", "4096", "4096", "16", "16", "--picture", str(tmp_path / "black.svg")]) == 2
    assert "65,536 blocks" in capsys.readouterr().err
    assert not (tmp_path / "black.svg").exists()


# --- exercise 1


def test_the_launches_of_exercise_1(tmp_path, capsys):
    path = written_run(tmp_path / "l.jsonl", "lecture_pmpp", pmpp_lines())
    assert pmpp.main(["--from", path]) == 0
    out = capsys.readouterr().out
    assert "grid(64, 64), block(16, 16)" in out
    assert "grid(128), block(128)" in out


@pytest.mark.parametrize(
    ("kernel", "sectors"),
    [("naive", [2, 2, 4]), ("row_per_thread", [32, 1, 32]), ("column_per_thread", [1, 4, 4])],
)
def test_sectors_that_a_warp_touches(kernel, sectors):
    assert launch_arithmetic.sectors_of_warp(kernel, 1024, 1024, item=4) == sectors


def test_rows_that_lie_close_share_sectors():
    assert launch_arithmetic.sectors_of_warp("row_per_thread", 4, 4, item=4) == [16, 1, 16]


def test_the_three_shapes_are_the_same_work():
    shapes = pmpp.shapes(96)
    assert {n * l * m for n, l, m in shapes.values()} == {96**3}
    assert [launch_arithmetic.threads_at_work(kernel, 7, 5) for kernel in pmpp.DESIGNS] == [35, 7, 5]


def test_pros_and_cons_from_recorded_lines(tmp_path, capsys):
    path = written_run(tmp_path / "l.jsonl", "lecture_pmpp", pmpp_lines())
    assert pmpp.main(["--from", path]) == 0
    out = capsys.readouterr().out
    assert "columns 2 × as fast as rows, elements 4 × as fast as columns" in out
    assert "tall: 16,384 threads by rows, 256 by columns" in out
    assert "1 ms, 1074 GB/s of the matrix" in out
    assert "NVIDIA H200, " in out


def test_without_a_gpu_no_speed_is_said(tmp_path, capsys):
    path = written_run(tmp_path / "l.jsonl", "lecture_pmpp", pmpp_lines(), gpu=None)
    assert pmpp.main(["--from", path]) == 0
    out = capsys.readouterr().out
    assert "right" in out
    assert not any(word in out for word in ("GF/s", "GB/s", "as fast", " ms"))


# --- exercise 2


@pytest.mark.needs("compiler")
def test_the_host_function():
    rng = np.random.default_rng()
    matrix, vector = rng.random((70, 70), np.float32), rng.random(70, np.float32)
    out = np.full(70, np.nan, np.float32)
    pmpp.stub_on(EmulatedRuntime(1 << 20))(out, matrix, vector, 70)
    np.testing.assert_allclose(out, matrix @ vector, rtol=1e-5)


# --- the picture


@pytest.mark.parametrize(("gpu", "panels"), [("NVIDIA H200", 3), (None, 2)])
def test_the_picture(tmp_path, gpu, panels):
    pytest.importorskip("matplotlib")
    path = written_run(tmp_path / "l.jsonl", "lecture_pmpp", pmpp_lines(), gpu=gpu)
    picture = tmp_path / "p.svg"
    made = []
    for _ in range(2):
        assert pmpp.main(["--from", path, "--picture", str(picture)]) == 0
        made.append(picture.read_bytes())
    assert made[0] == made[1]
    text = text_of(picture)
    assert all(words in text for words in ("sectors of 32 bytes", "threads", *pmpp.DESIGNS, "load of A", "tall"))
    assert ("GF/s" in text) is (panels == 3)
    assert ("NVIDIA H200, " in text) is (gpu is not None)


@pytest.mark.gpu
def test_measured_on_a_gpu(tmp_path):
    path = str(tmp_path / "l.jsonl")
    assert pmpp.main(["--quick", "--device", "cuda", "--json", path]) == 0
    lines = [line for line in jsonl.read(path) if line["part"] != "end"]
    assert len(lines) == 11
    assert all(line["device"] == "cuda" and line["gpu"] and line["seconds"]["median"] > 0 for line in lines)
