# SPDX-License-Identifier: MIT
"""The documents' numbers: every launch they speak of, their tables beside recorded lines of a GPU, the reads of each element, and
how large Pascal's triangle may be. Without a GPU no speed of a kernel is told."""

import json
import math
import re
from functools import partial
from statistics import fmean

import pytest
from support.commands import ROOT, module, successful
from support.forked import quickly
from support.selection import exhaustive

LECTURES = module("hybrid.lectures")
start = partial(quickly, limit=280)  # for compilations on a busy machine, too
RECORDED = ROOT / "docs/measured/lectures-h200.jsonl"


def said(name, *arguments, **options):
    return successful(start(LECTURES, name, *arguments, **options)).stdout


def rows(text):
    """The words of each line."""
    return [line.split() for line in text.splitlines()]


def recorded(command, **wanted):
    """The lines of a run on an H200 that have these entries."""
    lines = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["command"] == command and wanted.items() <= line.items()]


# --- Programming Massively Parallel Processors, chapter 3; the slides; figure 2.1: the arithmetic of launches

# Rows, columns and a block's x and y; what the documents say: threads of a block, the grid, blocks, threads, those within C.
LAUNCHES = {
    "exercise 3": ((150, 300, 16, 32), (512, (19, 5), 95, 48_640, 45_000)),
    "figure 2.1": ((70, 200, 32, 16), (512, (7, 5), 35, 17_920, 14_000)),
    "100×200 · 200×500": ((100, 500, 16, 16), (256, (32, 7), 224, 57_344, 50_000)),
    "slides": ((1024, 1024, 16, 16), (256, (64, 64), 4096, 1_048_576, 1_048_576)),
    "one element": ((1, 1, 32, 32), (1024, (1, 1), 1, 1024, 1)),
}


@pytest.mark.parametrize("name", exhaustive(["exercise 3"], LAUNCHES))
def test_the_arithmetic_of_a_launch(name):
    (n, m, x, y), (block, grid, blocks, threads, within) = LAUNCHES[name]
    text = said("pmpp", "--launch", n, m, x, y)
    numbers = [
        re.search(rf"^ +{what} +([\d,×]+)", text, re.MULTILINE)[1].replace(",", "")
        for what in ("threads a block", "grid", "blocks", "threads", "pass the bounds test")
    ]
    assert numbers == [str(block), "×".join(map(str, grid)), str(blocks), str(threads), str(within)], text
    assert (block, grid, within) == (x * y, (math.ceil(m / x), math.ceil(n / y)), n * m)
    assert (f"dim3 block({x}, {y}), grid({grid[0]}, {grid[1]});" in text) or name == "one element"


def test_figure_2_1_both_ways_with_its_picture(tmp_path):
    """Blocks of x = 32, y = 16 are 35, the other way round 39: 3,920 and 5,968 threads lie outside of C."""
    text = said("pmpp", "--launch", 70, 200, 32, 16, "--picture", tmp_path / "grid.svg")
    assert "13×3, 39 blocks" in text
    drawn = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "grid.svg").read_text(encoding="utf-8")))
    assert all(words in drawn for words in ("35 blocks, 3,920 threads", "39 blocks, 5,968 threads"))


def test_a_picture_of_65536_blocks_is_refused(tmp_path):
    done = start(LECTURES, "pmpp", "--launch", 4096, 4096, 16, 16, "--picture", "black.svg", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n"), done.stderr[-2:]) == (2, 1, "]\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("height", "is_told"), exhaustive([(65_535 * 32 + 1, True)], [(65_535 * 32 + i, i > 0) for i in (0, 1)]))
def test_a_grid_is_limited_to_65535_blocks_in_y(height, is_told):
    assert ("at most 65,535" in said("pmpp", "--launch", height, 9, 16, 32)) is is_told


def test_exercise_1_from_recorded_lines():
    """A thread a row, a column, an element, on three shapes of the same work."""
    text = said("pmpp", "--from", RECORDED)
    lines = recorded("lecture_pmpp", part="exercise 1")
    assert {line["n"] * line["l"] * line["m"] for line in lines} == {1024**3}
    for line in lines:
        threads = {"naive": line["n"] * line["m"], "row_per_thread": line["n"], "column_per_thread": line["m"]}[line["kernel"]]
        (row,) = [words for words in rows(text) if words[:1] == [line["form"]] and line["kernel"] in words]
        assert f"{threads:,}" in row
        speed = 2 * 1024**3 / line["seconds"]["median"] / 1e9
        assert float(row[-1]) == pytest.approx(speed, rel=1e-3)


def test_the_documents_launches_are_those_computed():
    table = said("pmpp", "--from", RECORDED).partition("launches\n")[2]
    pairs = re.findall(r"  ([\d,×]+) +([\d,×]+)$", table, re.MULTILINE)
    assert len(pairs) >= 14
    assert all(lecture == computed for lecture, computed in pairs)


# --- Siegel, CUDA part 4


def test_siegel_s_three_programs_from_recorded_lines():
    """512 billion multiplications; 13.8 s and 4.8 s on a K40c; what was not run is extrapolated by n³."""
    text = said("siegel", "--from", RECORDED)
    assert f"{8000**3:,}" in text
    programs = {line["program"]: line for line in recorded("lecture_siegel", part="kernel")}
    first, second = (programs[name]["seconds"]["median"] for name in ("matmul1", "matmul2"))
    table = {words[0]: words for words in rows(text)[1:8] if words}
    assert table["matmul1"][:5] == ["matmul1", "13.8", "s", f"{first * 1e3:.1f}", "ms,"]
    assert table["matmul2"][:5] == ["matmul2", "4.8", "s", f"{second * 1e3:.1f}", "ms,"]
    assert table["ratio"] == ["ratio", "2.9", f"{first / second:.2f}"]
    (sequential,) = recorded("lecture_siegel", part="seq", kernel="loops", n=1000)
    assert f"{sequential['seconds']['median'] * 8**3 / 60:.3g} min, extrapolated" in text


# --- CUDA in Two-dimension

TABLE = {
    "MM-CPU": ("41045.35 40277.44 40369.30 40385.85 40446.14", "40504.82", ""),
    "MM-GPU-GM": ("52.5 52.4 52.4 52.4 52.6", "52.46", "772"),
    "MM-GPU-SM": ("24.4 24.2 24.3 24.4 24.4", "24.34", "1664"),
}


def test_the_two_dimensional_table_beside_recorded_lines():
    """Its five runs, their averages, and how many times faster than the CPU; the same of an H200."""
    text = said("2d", "--from", RECORDED)
    table, here = rows(text), {line["program"]: line for line in recorded("lecture_2d", part="programs")}
    cpu = fmean(here["MM-CPU"]["runs"])
    for program, (runs, average, faster) in TABLE.items():
        assert [program, "1024", *runs.split(), average, *faster.split(), "lecture"] in table
        assert fmean(map(float, runs.split())) == pytest.approx(float(average), abs=0.005)
        if faster:
            assert int(40504.82 / float(average)) == int(faster)
            own = next(words for words in table[table.index([program, "1024", *runs.split(), average, faster, "lecture"]) + 1 :])
            assert float(own[6]) == pytest.approx(1e3 * fmean(here[program]["runs"]), rel=1e-3)
            assert float(own[7]) == pytest.approx(cpu / fmean(here[program]["runs"]), rel=1e-3)
    assert f"leaves {1000**2 - 992**2:,} of 1,000,000 elements" in text


# --- Hochberg: the published factors, Pascal's triangles


def test_hochberg_s_factors_beside_recorded_lines():
    text = said("hochberg", "--from", RECORDED)
    for words in (
        ["GT", "9600M", "1.1", "32", "cores", "1000", "7"],
        ["C1060", "1.3", "240", "cores", "8000", "more", "than", "6.5"],
        ["M2070", "2.0", "448", "cores", "8000", "2.6"],
    ):
        assert words in rows(text)
    one, other = (
        recorded("lecture_hochberg", part="kernel", program=name, size=4000)[0]["seconds"]["median"]
        for name in ("multNoShare", "multShare")
    )
    (row,) = [words for words in rows(text) if words[:1] == ["4000"]]
    assert float(row[4]) == pytest.approx(one / other, abs=0.006)


# The largest triangles whose entries a type holds, and those of which it holds all sums of magnitudes in the product, too.
FIT = {"int32": 34, "int64": 67, "float32": 28, "float64": 57}
EXACT = {"int32": 22, "int64": 42, "float32": 17, "float64": 36}


def test_pascal_tells_them_and_what_came_out_right(tmp_path):
    text = said("pascal", "--quick", "--device", "cpu", "--json", tmp_path / "pascal.jsonl")
    lines = {
        line["dtype"]: line
        for line in map(json.loads, (tmp_path / "pascal.jsonl").read_text().splitlines())
        if line["part"] != "end"
    }
    assert {dtype: (line["fit"], line["exact"]) for dtype, line in lines.items()} == {
        dtype: (FIT[dtype], EXACT[dtype]) for dtype in FIT
    }
    for dtype, line in lines.items():
        assert EXACT[dtype] <= line["right"] <= FIT[dtype]
        assert (line["right"] == FIT[dtype]) is dtype.startswith("int")  # which wrap around to the identity
        assert [dtype, str(FIT[dtype]), str(EXACT[dtype]), str(line["right"])] in [words[:4] for words in rows(text)]
    assert said("pascal", "--from", tmp_path / "pascal.jsonl") == text


def test_pascal_s_matrices_are_shown():
    text = said("pascal", "--show", 8, "--device", "cpu")
    assert ["1", "7", "21", "35", "35", "21", "7", "1"] in rows(text)
    assert ["-1", "7", "-21", "35", "-35", "21", "-7", "1"] in rows(text)
    assert text.endswith("the identity\n")


# --- measured here: without a GPU the products are checked, and no speed is told


@pytest.mark.needs("compiler", "c compiler")
@pytest.mark.parametrize("name", ["siegel", "2d", "hochberg", "pmpp"])
@pytest.mark.exhaustive
def test_a_quick_run_without_a_gpu_checks_and_tells_no_speed(tmp_path, name):
    text = said(name, "--quick", "--device", "emulate", "--json", tmp_path / "lines.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert {line["gpu"] for line in lines[:-1]} == {None}
    assert lines[-1]["part"] == "end"
    assert "right" in text
    assert not re.search(r"GF/s|GB/s| as fast", text if name == "pmpp" else "")
    assert said(name, "--from", tmp_path / "lines.jsonl") == text


@pytest.mark.gpu
@pytest.mark.parametrize(
    "words", [["pmpp", "--quick"], ["2d", "--quick"], ["hochberg", "--sizes", 100, 130], ["siegel", "--quick", "--size", 300]]
)
def test_a_quick_run_on_a_gpu(tmp_path, words):
    said(*words, "--device", "cuda", "--json", tmp_path / "lines.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert all(line["seconds"]["median"] > 0 for line in lines if line.get("seconds"))
    assert any(line["gpu"] for line in lines)
