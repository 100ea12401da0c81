# SPDX-License-Identifier: MIT
"""What scripts/ladder.py makes of recorded lines, and the loads it counts. Nothing is timed here."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.recorded_lines import ROW_BLOCK, SHAPES, ladder_line, ladder_lines, written

from experiments.common.tables import printed, write_between_markers
from experiments.ladder import cli, loads, timing
from experiments.ladder.results import Results, unit_of
from experiments.start import SCRIPTS
from hybrid.errors import UsageError
from hybrid.kernels.catalogue import CATALOGUE, named
from hybrid.reporting import jsonl

README = "# Kernels\r\n\nbefore <!-- ladder --> in a line\n<!-- ladder -->\nold\n<!-- /ladder -->\nafter, without an end of line"


@pytest.fixture
def lines_file(tmp_path):
    return written(tmp_path / "lines.jsonl", ladder_lines())


# --- the table


def rows_of(text, dtype):
    part = text.split(f"{dtype}, {unit_of(dtype)}")[1].split("\n\n")[1]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in part.splitlines()]
    assert len({len(row) for row in rows}) == 1
    return {row[0]: row[1:] for row in rows}


def test_a_table_has_each_rung_of_its_dtype():
    text = Results(ladder_lines()).markdown()
    rows = rows_of(text, "float64")
    assert rows["rung"][4:] == ["4096", "8000", "8192", "16384", "1000×8000²"]
    assert rows["naive"] == ["16×16", "40", "2 KiB", "2", *["3.80 (7.6 %)"] * 3, "–", "3.80 (7.6 %)"]
    assert rows["tiled"][3] == "1/8"
    assert rows["warp_tiled"][:4] == ["128×256", "40", "2 KiB", "3/256"]
    assert rows["tensor"][4] == "49.0 (98.0 %)"
    assert rows["cublas"] == ["–"] * 4 + ["50.0"] * 5
    assert rows["pipelined"] == ["–"] * 9, "a rung without lines"
    assert not {"matvec", "matvec_warp", "blas"} & set(rows)
    assert "tensor" not in rows_of(text, "float32")
    assert set(rows_of(text, "float16")) == {"rung", "---", "tensor_half", "cublas"}
    assert rows_of(text, "float16")["tensor_half"][4] == "48.0 (96.0 %)"
    assert rows_of(text, "int8")["tensor_int8"][4] == "47.0 (94.0 %)"
    assert "int8, TOPS (and % of cuBLAS)" in text
    assert "NVIDIA H200, driver 580.1, CuPy 14.2.0, cuBLAS 13.2.0; " in text
    assert "2026-11-21, `python scripts/ladder.py --json lines.jsonl`" in text


def test_whole_rows_and_spills_are_named():
    text = Results([ladder_line("column_per_thread", "float32", ROW_BLOCK, spills=48)]).markdown()
    assert rows_of(text, "float32")["column_per_thread"] == ["n×128", "40, 48 bytes spilled", "2 KiB", "2", "–"]


def test_the_last_line_counts_and_the_last_gpu():
    shape = SHAPES[0]
    lines = [
        ladder_line("tensor", "float64", SHAPES[1], speed=30.0, gpu="another"),
        ladder_line("tensor", "float64", shape, speed=40.0),
        ladder_line("tensor", "float64", shape, speed=45.0),
    ]
    results = Results(Results.selected(lines))
    assert results.of("tensor", "float64", shape)["teraflops"] == 45.0
    assert results.shapes() == [shape]


def test_rewriting_keeps_the_rest_and_can_be_repeated(tmp_path):
    path = tmp_path / "README.md"
    path.write_bytes(README.encode())
    before, _, after = README.encode().partition(b"<!-- ladder -->\nold\n<!-- /ladder -->\n")
    write_between_markers(path, "ladder", "a table with × in it\n")
    once = path.read_bytes()
    assert once == before + b"<!-- ladder -->\n\n" + "a table with × in it\n".encode() + b"\n<!-- /ladder -->\n" + after
    write_between_markers(path, "ladder", "a table with × in it\n")
    assert path.read_bytes() == once


@pytest.mark.parametrize("text", ["", "<!-- ladder -->\n", "<!-- /ladder -->\n<!-- ladder -->\n", README + "\n" + README])
def test_without_its_markers_nothing_is_written(tmp_path, text):
    path = tmp_path / "README.md"
    path.write_bytes(text.encode())
    with pytest.raises(UsageError, match="must have one line"):
        write_between_markers(path, "ladder", "table")
    assert path.read_bytes() == text.encode()
    assert list(tmp_path.iterdir()) == [path]


def test_the_readme_has_its_markers_and_names_every_rung(tmp_path):
    text = cli.README.read_text()
    copy = tmp_path / "README.md"
    copy.write_text(text)
    write_between_markers(copy, "ladder", "table")
    assert [kernel.name for kernel in CATALOGUE if kernel.source and f"`{kernel.name}`" not in text] == []


def test_table_and_picture_from_recorded_lines(lines_file, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    readme, picture = tmp_path / "kernels" / "README.md", tmp_path / "docs" / "ladder.svg"
    for path in (readme, picture):
        path.parent.mkdir()
    readme.write_bytes(README.encode())
    monkeypatch.setattr(cli, "README", readme)
    monkeypatch.setattr(cli, "PICTURE", picture)
    made = []
    for _ in range(2):
        assert cli.main(["--from", lines_file, "--write"]) == 0
        made.append((readme.read_bytes(), picture.read_bytes()))
    assert made[0] == made[1]
    assert b"](../docs/ladder.svg)" in made[0][0]
    assert b"<svg" in made[0][1]


# --- the targets


def test_every_target_reached(lines_file, capsys):
    assert cli.main(["--from", lines_file, "--check"]) == 0
    out = capsys.readouterr().out
    assert out.count("pass") == 8
    assert "float32 best rung at 8192 (warp_tiled): 0.99 × cuBLAS" in out
    assert "13.8 s / 4.8 s = 2.9" in out


@pytest.mark.parametrize(
    ("late", "text"),
    [
        (
            ladder_line("tensor", "float64", SHAPES[2], speed=48.0, ratio=0.9601),
            "0.9601 × cuBLAS, wanted at least 0.97, short by 0.0",
        ),
        (ladder_line("tensor", "float64", ROW_BLOCK, speed=46.0, ratio=0.92), "float64 tensor at 1000×8000²: 0.92"),
        (ladder_line("warp_tiled", "float32", SHAPES[3], speed=40.0), "float32 best rung at 16384 (warp_tiled): 0.8"),
        (ladder_line("tensor", "float64", SHAPES[1]), "float64 tensor at 8000: not measured"),
        (ladder_line("tiled", "float32", SHAPES[1], speed=3.7), "float32 tiled over naive at 8000: 0.97 × as fast"),
    ],
)
def test_a_missed_target(lines_file, capsys, late, text):
    jsonl.write(late, lines_file)
    assert cli.main(["--from", lines_file, "--check"]) == 1
    missed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("MISSED")]
    assert len(missed) == 1
    assert text in missed[0]


# --- measuring


def timed(name, seconds):
    return timing.Timed(named(name), lambda a, b, c: None, seconds)


def test_each_runs_once_a_round_the_slow_ones_first_the_others_in_turn():
    every = [timed("naive", 0.3), *(timed(name, 0.02) for name in ("pipelined", "tensor", "cublas"))]
    orders = [[one.kernel.name for one in timing.in_turn(every, round_number)] for round_number in range(6)]
    assert all(order[0] == "naive" and len(set(order)) == len(order) == 4 for order in orders)
    assert {order[1] for order in orders} == {order[3] for order in orders} == {"pipelined", "tensor", "cublas"}


def test_a_ratio_is_of_times_of_the_same_round():
    got = timing.summary([1.0, 2.0, 4.0], [1.0, 1.0, 4.0], 10**12)
    assert got == {"seconds": {"median": 2.0, "min": 1.0, "max": 4.0}, "teraflops": 1.0, "ratio": 1.0}
    assert timing.summary([], [1.0], 1)["seconds"] is None


@pytest.mark.gpu
def test_measured_on_a_gpu(tmp_path, capsys):
    path = str(tmp_path / "lines.jsonl")
    assert cli.main(["--sizes", "500", "300x200x100", "--rounds", "2", "--json", path]) == 0
    lines = list(jsonl.read(path))
    assert {one["kernel"] for one in lines} >= {"naive", "tiled", "register_tiled", "cublas"}
    assert all(one["seconds"]["median"] > 0 and one["ratio"] > 0 for one in lines)
    assert all(one["registers"] > 0 for one in lines if one["kernel"] != "cublas")
    assert len(capsys.readouterr().out.splitlines()) == len(lines)


# --- loads


@pytest.mark.parametrize(
    ("name", "of_a", "of_b"),
    [("naive", 90, 100), ("tiled", 6, 7), ("register_tiled", 2, 1)],  # 128×64 in float32
)
@pytest.mark.needs("compiler")
def test_loads_are_as_the_formulas_say(name, of_a, of_b):
    counted = loads.count_loads(named(name), "float32", (100, 60, 90))
    assert (counted.a, counted.b) == ((of_a,) * 3, (of_b,) * 3)
    assert counted.formula == (of_a, of_b)
    assert counted.per_multiply_add == pytest.approx(of_a / 90 + of_b / 100)
    assert "differs" not in "".join(printed([loads.loads_table([counted])]))


@pytest.mark.needs("compiler")
def test_the_readme_shows_what_is_printed():
    rungs = (("tiled", "float32"), ("tensor", "float64"))
    counted = [loads.count_loads(named(name), dtype, (300, 40, 290)) for name, dtype in rungs]
    shown = [line.split() for line in cli.README.read_text(encoding="utf-8").splitlines()]
    for line in "\n".join(printed([loads.loads_table(counted)])).splitlines():
        assert line.split() in shown, line


@pytest.mark.needs("compiler")
def test_loads_of_operands_of_16_bits():
    counted = loads.count_loads(named("tensor_half"), "bfloat16", (140, 70, 300))
    assert (counted.a, counted.b, counted.formula) == ((2,) * 3, (2,) * 3, (2, 2))


@pytest.mark.needs("compiler")
def test_loads_of_bytes():
    counted = loads.count_loads(named("tensor_int8"), "int8", (140, 140, 300))
    assert (counted.a, counted.b, counted.formula) == ((2,) * 3, (2,) * 3, (2, 2))


# --- the command


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--from", "{lines}", "--kernels", "nosuch"], "unknown rung 'nosuch'"),
        (["--from", "{empty}/nowhere"], "Not a directory"),
        (["--from", "{empty}"], "has no lines of scripts/ladder.py"),
        (["--rounds", "0"], "more than 0"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(lines_file, tmp_path, capsys, arguments, text):
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert cli.main([argument.format(lines=lines_file, empty=empty) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1


def test_help():
    done = subprocess.run([sys.executable, str(SCRIPTS / "ladder.py"), "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--loads" in done.stdout
