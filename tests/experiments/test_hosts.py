# SPDX-License-Identifier: MIT
"""What scripts/bench_hosts.py starts, keeps and makes of recorded lines. No time is judged here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from argparse import Namespace

import numpy as np
import pytest
from support.recorded_lines import hosts_line, hosts_lines, written

from experiments.common.product_check import refuse_wrong
from experiments.hosts import cli, goals, runs
from experiments.hosts.programs.common import uniform
from experiments.hosts.results import Results
from experiments.hosts.runs import Start, starts
from experiments.start import SCRIPTS
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import CheckFailed, DeviceUnavailable
from hybrid.reporting import jsonl

SCRIPT = SCRIPTS / "bench_hosts.py"
PAGE = "# Benchmarks\r\n\nbefore <!-- hosts --> in a line\n<!-- hosts -->\nold\n<!-- /hosts -->\nafter, without an end of line"


def results_of(tmp_path, lines):
    return Results(Results.recorded(written(tmp_path / "some.jsonl", lines)))


@pytest.fixture
def lines_file(tmp_path):
    return written(tmp_path / "lines.jsonl", hosts_lines())


# --- the table


def rows_of(text, grid=0):
    part = text.split("| n |")[grid + 1].split("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in ("| n |" + part).splitlines()]
    assert len({len(row) for row in rows}) == 1
    return {(row[0], row[1]): row[2:] for row in rows}


def test_the_table_shows_times_and_ratios(tmp_path):
    text = results_of(tmp_path, hosts_lines()).markdown()
    rows = rows_of(text)
    assert rows["n", ""] == ["1 GPU", "2 GPUs", "4 GPUs", "8 GPUs"]
    assert rows["8000", "written by hand"] == ["281", "371", "544", "798"]
    assert rows["8000", "ours, the command"] == ["23.8 (11.8 ×)", "13.1 (28.3 ×)", "8.70 (62.5 ×)", "7.90 (101 ×)"]
    assert rows["16000", "ours, the command"] == ["–", "–", "–", "28.0 (107 ×)"]
    assert ("16000", "JAX") not in rows
    assert rows["8000", "ours, `multiply(a, b, out=c)`"][0] == "25.2 (11.2 ×)"
    assert rows["8000", "ours, `multiply(a, b, out=c, check=False)`"][0] == "25.0 (11.2 ×)"
    assert rows["8000", "cuBLASXt, page-locked operands"] == ["47.0 (5.98 ×)", "31.8 (11.7 ×)", "–", "–"], "the best block size"
    assert "The best block sizes of cuBLASXt, pageable operands: 4096 for 8000 on 1, 4096 for 8000 on 2." in text
    assert rows["8000", "ours, row blocks that stay on the GPUs"] == ["–", "–", "–", "2.90"]
    assert rows_of(text, 1)["8000", "ours, the command"] == ["100"] * 4, "the shortest set-up"
    assert "8000 on 1, matrices 3 × the allowed memory: 26.0 ms, 0.915 × the rate in memory." in text
    assert "`mpirun -n 8 python -m hybrid.matmul 8000 8000 8000`: 2.80 s (2.55 to 3.11)." in text
    assert "512 on 1: 0.900 ms, the same copies and cuBLAS 0.200 ms, 0.700 ms more." in text
    assert "Measured on 8 × NVIDIA H200, " in text
    assert "Open MPI v4.1.6; 2026-11-21, `python scripts/bench_hosts.py --gpus 1 2 4 8 --json hosts.jsonl`" in text
    assert "Not of a GPU" not in text


def test_times_are_medians_of_rounds_and_ratios_of_times_of_the_same_round(tmp_path):
    hand, ours = (10.0, 40.0, 100.0), (1.0, 2.0, 50.0)
    lines = [hosts_line("handwritten", 1, 96, ms, number=number) for number, ms in enumerate(hand)]
    lines += [hosts_line("ours", 1, 96, ms, number=number) for number, ms in enumerate(ours)]
    results = results_of(tmp_path, lines)
    cell = results.of("ours", 1, 96)
    assert cell.milliseconds == pytest.approx(2.0)
    assert cell.repeats == 9
    assert results.ratio(cell) == pytest.approx(10.0), "of 10, 20 and 2"


def test_the_newest_run_counts_and_no_ratio_is_made_across_runs(tmp_path):
    lines = [hosts_line("handwritten", 1, 96, 10.0), hosts_line("ours", 1, 96, 2.0), hosts_line("ours", 1, 96, 1.0, run="run 2")]
    results = results_of(tmp_path, [hosts_line("ours", 1, 96, 9.0, gpu="another", run="run 0"), *lines])
    assert results.of("ours", 1, 96).milliseconds == pytest.approx(1.0)
    assert results.ratio(results.of("ours", 1, 96)) is None
    assert results.ratio(results.of("ours", 1, 96, "run 1")) == pytest.approx(5.0)
    assert results.of("ours", 1, 96, "run 0") is None, "of another machine"


def test_what_is_not_of_a_gpu_is_said_to_be_so(tmp_path):
    text = results_of(tmp_path, hosts_lines("emulate")).markdown()
    assert text.startswith("Not of a GPU")
    assert "1 rank | 2 ranks" in text
    assert "no GPU, device emulate" in text


def test_beside_the_whole_command_stands_what_its_launcher_takes(tmp_path):
    lines = [hosts_line("wall", 1, 8000, 1900.0), hosts_line("launcher", 1, 8000, 250.0), hosts_line("wall", 4, 8000, 2500.0)]
    lines.append(hosts_line("imports", 4, 8000, 1800.0))
    text = results_of(tmp_path, lines).markdown()
    assert "make the GPU ready 1.80 s." in text
    assert "8000 8000 8000`: 1.90 s (1.73 to 2.11); `mpirun -n 1 true` takes 0.25 s." in text
    assert "`mpirun -n 4 true`" not in text


def test_what_was_left_out_is_named(tmp_path):
    nothing = dict.fromkeys(("part", "gpus", "n", "seconds"))
    missing = {**hosts_line("jax", 1, 96, 1.0), **nothing, "left_out": "jax: not installed"}
    assert "Left out: jax: not installed\n" in results_of(tmp_path, [*hosts_lines(), missing]).markdown()
    alone = Results([{**missing, "versions": {}, "machine": {}}]).markdown()
    assert "Left out" in alone
    assert "| n |" not in alone


# --- page and picture


@pytest.fixture
def written_to(tmp_path, monkeypatch):
    """A page and a picture to write to."""
    pytest.importorskip("matplotlib")
    page, picture = tmp_path / "docs" / "benchmarks.md", tmp_path / "docs" / "hosts.svg"
    picture.parent.mkdir()
    page.write_bytes(PAGE.encode())
    monkeypatch.setattr(cli, "PAGE", page)
    monkeypatch.setattr(cli, "PICTURE", picture)
    return page, picture


def test_table_and_picture_from_recorded_lines(lines_file, written_to):
    made = []
    for _ in range(2):
        assert cli.main(["--from", lines_file, "--write"]) == 0
        made.append(tuple(path.read_bytes() for path in written_to))
    assert made[0] == made[1]
    assert b"](hosts.svg)" in made[0][0]
    picture = made[0][1].decode()
    assert "<svg" in picture
    for text in ("written by hand", "JAX", "PyTorch", "ours, the command", "8000×8000", "8 × NVIDIA H200", "2026-11-21"):
        assert text in picture


def test_what_is_not_of_a_gpu_is_not_written(tmp_path, written_to, capsys):
    path = written(tmp_path / "lines.jsonl", hosts_lines("cpu"))
    assert cli.main(["--from", path, "--write"]) == 2
    assert "not of a GPU: nothing is written" in capsys.readouterr().err
    assert written_to[0].read_bytes() == PAGE.encode()
    assert not written_to[1].exists()


# --- the goals


def test_every_goal_reached(lines_file, capsys):
    assert cli.main(["--from", lines_file, "--check"]) == 0
    out = capsys.readouterr().out
    assert "MISSED" not in out
    assert out.count("pass") == 5 + 2 + 4 + 1 + 2 + 1 + 1 + 6
    assert "the command at 8000 on 1: 11.81 × written by hand, wanted at least 11.5" in out
    assert "multiply with its check at 8000 on 1: 1.865 × cuBLASXt, page-locked operands, wanted at least 1.8" in out
    assert "multiply at 8000 on 8 beside 4: 0.85 × the time, wanted at most 1.03" in out


@pytest.mark.parametrize(
    ("late", "text"),
    [
        ([("ours", 1, 8000, 28.1)], "the command at 8000 on 1: 10 × written by hand, wanted at least 11.5, short by 1.5"),
        ([("ours", 8, 16000, 40.0)], "the command at 16000 on 8: 75 ×"),
        ([("library", 8, 8000, 9.5)], "multiply at 8000 on 8: 9.5 ms, wanted at most 9, over by 0.5"),
        ([("library", 4, 8000, 15.6)], "multiply at 8000 on 4 beside 2: 1.04 × the time, wanted at most 1.03, over by 0.01"),
        (
            [("cublasxt, page-locked", 1, 8000, 44.0)],
            "multiply with its check at 8000 on 1: 1.746 × cuBLASXt, page-locked operands",
        ),
        ([("cublasxt, pageable", 2, 8000, 120.0)], "on 2: 7.895 × cuBLASXt, pageable operands, wanted at least 8, short by 0.1"),
        ([("wall", 1, 8000, 2100.0)], "whole command at 8000 on 1: 2.1 s, wanted at most 2"),
        ([("larger", 1, 8000, 29.75)], "3 × the allowed memory at 8000 on 1: 0.8 × in memory, wanted at least 0.85"),
        ([("resident", 8, 8000, 3.1)], "row blocks at 8000 on 8: 3.1 ms, wanted at most 3, over by 0.1"),
        ([("small", 1, 512, 1.7)], "small product at 512 on 1: 1.5 ms more, wanted at most 1"),
    ],
)
def test_a_missed_goal(tmp_path, capsys, late, text):
    keys = {entry[:3] for entry in late}
    lines = [one for one in hosts_lines() if (one["part"], one["gpus"], one["n"]) not in keys]
    lines += [hosts_line(*entry, number=number, repeat=45, block=4096) for entry in late for number in range(3)]
    assert cli.main(["--from", written(tmp_path / "late.jsonl", lines), "--check"]) == 1
    missed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("MISSED")]
    assert len(missed) == 1
    assert text in missed[0]


def test_fewer_repeats_than_wanted_reach_no_goal(tmp_path):
    few = [hosts_line("library", 8, 8000, 8.0, number=number, repeat=2) for number in range(3)]
    (verdict,) = goals.verdicts(results_of(tmp_path, few))
    assert not verdict.passed
    assert "6 repeats are fewer than 7" in verdict.text


@pytest.mark.parametrize(("seconds", "passed"), [(1.9, True), (1.7, False)])
def test_the_command_may_take_little_more_than_its_imports(tmp_path, seconds, passed):
    lines = [hosts_line("wall", 2, 8000, 2200.0, repeat=7), hosts_line("imports", 2, 8000, 1000 * seconds, repeat=7)]
    (verdict,) = goals.verdicts(results_of(tmp_path, lines))
    assert verdict.passed is passed
    assert "whole command at 8000 on 2, beyond loading MPI, NumPy and CuPy" in verdict.text


def test_goals_are_judged_only_where_they_were_measured(tmp_path, capsys):
    assert goals.verdicts(results_of(tmp_path, [hosts_line("ours", 4, 8000, 9.0), hosts_line("jax", 8, 8000, 9.0)])) == []
    path = written(tmp_path / "cpu.jsonl", hosts_lines("cpu"))
    assert cli.main(["--from", path, "--check"]) == 0
    assert capsys.readouterr().out.endswith("not of a GPU: the goals do not apply\n")


# --- what is started


def plan(**more):
    asked = {"gpus": [1, 2, 4], "sizes": [96, 128], "only": runs.PARTS, "rounds": 3, "repeat": 3, "device": "cpu"}
    return Namespace(**{**asked, "wall_size": 96, "small_sizes": [40], "launcher": "", **more})


def test_each_round_starts_every_part_in_another_order():
    every = list(starts(plan()))
    for gpus in (1, 2, 4):
        orders = []
        for number in range(3):
            of_round = [
                start.part for start in every if (start.gpus, start.round) == (gpus, number) and start.part in runs.IN_TURN
            ]
            orders.append(list(dict.fromkeys(of_round)))
        parts = (
            {"handwritten", "ours", "wires", "library", "cublasxt"}
            | ({"larger"} if gpus == 1 else set())
            | ({"wall"} if gpus != 2 else set())
        )
        assert all(set(order) == parts for order in orders)
        assert len({order[0] for order in orders}) == 3
    assert [start.part for start in every[-3:]] == ["small", "jax", "torch"]


def test_of_the_whole_command_the_first_start_does_not_count():
    walls = [start for start in starts(plan(only=["wall"])) if start.gpus == 4 and start.gives == "wall"]
    assert [start.wanted for start in walls] == [False] + [True] * 9


def test_what_is_larger_than_memory_comes_with_what_it_is_compared_with():
    every = list(starts(plan(only=["larger"], rounds=1)))
    assert [(start.gives, start.gpus) for start in every] == [("ours", 1), ("larger", 1)]
    assert every[1].command[-2:] == ["--gpu-memory", str(3 * 128 * 128 * 8 // 3)]


def test_the_launcher_is_told_more():
    (start,) = starts(plan(only=["handwritten"], gpus=[2], rounds=1, launcher="--bind-to 'a core'"))
    place = start.command.index("-n")
    assert start.command[place : place + 4] == ["-n", "2", "--bind-to", "a core"]


# --- a program


def program(text, **more):
    """A start of this Python text; it is told the file for its lines last."""
    return Start(
        "small", 1, 0, [sys.executable, "-c", f"import sys\nfrom experiments.hosts.programs.common import record\n{text}"], **more
    )


RECORD = "record(sys.argv[-1], 'small', 1, 40, [1.0, 2.0, 4.0], setup=0.5)\n"


def test_what_a_program_says_is_taken_over():
    said = runs.run(program(RECORD), 60)
    assert said.failure == ""
    (got,) = said.lines
    assert got["seconds"] == {"median": 2.0, "min": 1.0, "max": 4.0}
    assert (got["part"], got["gpus"], got["n"], got["repeat"], got["round"]) == ("small", 1, 40, 3, 0)


@pytest.mark.parametrize(
    ("end", "limit", "why"),
    [
        ("raise ValueError('no more')", 60, "ValueError: no more (exit code 1)"),
        ("print('ignored'); raise SystemExit('a word')", 60, "a word (exit code 1)"),
        ("import time; time.sleep(100)", 2, "not done within 2 s"),
    ],
)
def test_what_was_said_before_a_failure_stays(end, limit, why):
    said = runs.run(program(RECORD + end), limit)
    assert said.failure == why
    assert len(said.lines) == 1


def test_a_wrong_product_is_refused():
    a, b = uniform(50), uniform(50)
    c = a @ b
    assert refuse_wrong("it", a, b, c) < 1e-13
    assert 0 < a.min() < a.max() < 1
    c[7, 3] += 1  # times a random number: much less may go unseen
    with pytest.raises(CheckFailed, match="50×50"):
        refuse_wrong("it", a, b, c)
    c[7, 3] = np.nan
    with pytest.raises(CheckFailed):
        refuse_wrong("it", a, b, c)


# --- the whole script

OF_LIBRARY = ("library, checked", "library", "library, new C")
OF_WIRES = ("wires", "read", "wires, read")
PARTS_OF_ALL = ("handwritten", "ours", *OF_WIRES, *OF_LIBRARY, "resident")
OF_CUBLASXT = ("cublasxt, page-locked", "cublasxt, registered", "cublasxt, pageable")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Runs it with small matrices; the exit code and the recorded lines."""
    for name in [name for name in os.environ if name.startswith("HYBRID_")]:
        monkeypatch.delenv(name)

    def run(*arguments, device="cpu", **environment):
        path = tmp_path / "lines.jsonl"
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        few = ["--rounds", "1", "--repeat", "1", "--small-sizes", "24", "--device", device, "--json", str(path)]
        code = cli.main([*few, *arguments])
        return code, list(jsonl.read(str(path)))

    return run


def measured(lines):
    return {(one["part"], one["gpus"], one["n"]) for one in lines if one["part"]}


@pytest.mark.exhaustive
@pytest.mark.launcher
def test_everything_runs_without_a_gpu(bench, capsys):
    code, lines = bench("--gpus", "1", "2", "--sizes", "96", "--check")
    out = capsys.readouterr().out
    assert code == 0, out
    of_ranks = {(part, ranks, 96) for part in (*PARTS_OF_ALL, "wall", "launcher", "imports") for ranks in (1, 2)}
    assert of_ranks | {("small", 1, 24), ("small, plain", 1, 24), ("larger", 1, 96)} <= measured(lines)
    assert all(one["seconds"]["median"] > 0 and one["gpu"] is None for one in lines if one["part"])
    assert "Not of a GPU" in out
    assert out.count("Left out: cublasxt: it needs a GPU") == 1
    assert "the goals do not apply" in out


@pytest.mark.exhaustive
@pytest.mark.launcher
def test_the_transport_between_peers(bench):
    parts = ("--only", "ours", "library", "wall", "resident")
    code, lines = bench("--gpus", "2", "--sizes", "96", *parts, HYBRID_STAGED="1", HYBRID_TRANSPORT="peers")
    assert code == 0
    assert measured(lines) == {(part, 2, 96) for part in ("ours", *OF_LIBRARY, "wall", "launcher", "imports", "resident")}
    assert {one["transport"] for one in lines if one["part"] in ("ours", "wall")} == {"peers"}


@pytest.mark.launcher
@pytest.mark.needs("compiler")
def test_more_than_fits_in_the_memory_of_an_emulated_gpu(bench):
    code, lines = bench("--sizes", "48", "--only", "handwritten", "larger", device="emulate")
    assert code == 0
    assert measured(lines) == {(part, 1, 48) for part in ("handwritten", "ours", "larger")}
    assert next(one for one in lines if one["part"] == "larger")["settings"]["gpu_memory"] == 8 * 48 * 48


@pytest.mark.launcher
def test_a_part_that_fails_is_named_and_does_not_stop_the_others(bench, capsys):
    parts = ("--only", "ours", "library", "handwritten")
    alone = {"HYBRID_STAGED": "1", "HYBRID_TRANSPORT": "peers"}  # one rank has no peer
    code, lines = bench("--sizes", "96", "128", "--rounds", "2", *parts, **alone)
    assert code == 1
    assert measured(lines) == {("handwritten", 1, 96), ("handwritten", 1, 128)}
    told = capsys.readouterr().out
    assert told.count("Left out: ours on 1 at 96: hybrid.matmul: the transport peers cannot be used") == 1
    assert "Left out: library on 1: hybrid.errors.DeviceUnavailable: the transport peers cannot be used" in told


def test_no_time_left(bench, capsys):
    code, lines = bench("--sizes", "96", "--only", "small", "--total", "1e-9")
    assert code == 1
    assert measured(lines) == set()
    assert "Left out: small: no time was left" in capsys.readouterr().out


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_command_that_chose_another_device_does_not_count(bench, monkeypatch, device):
    ran = {"part": "wall", "gpus": 1, "n": 96, "round": 0, "seconds": {"median": 1.0, "min": 1.0, "max": 1.0}, "repeat": 1}
    monkeypatch.setattr(cli, "run", lambda start, limit: runs.Outcome([{**ran, "ran_on": device}]))
    code, lines = bench("--sizes", "96", "--only", "wall")
    assert code == (0 if device == "cpu" else 1)
    assert measured(lines) == ({("wall", 1, 96)} if device == "cpu" else set())


def test_what_is_not_installed_is_left_out_and_no_failure(bench, monkeypatch, capsys):
    monkeypatch.setattr(runs, "find_spec", lambda name: None)
    code, _ = bench("--sizes", "96", "--only", "jax", "small")
    assert code == 0
    assert "Left out: jax: not installed" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_an_interruption_leaves_what_was_measured(tmp_path):
    """By SIGTERM, as from timeout(1), in the middle of the second program."""
    path = tmp_path / "lines.jsonl"
    fast = ["--device", "cpu", "--rounds", "1", "--repeat", "1", "--only", "small", "--json", str(path)]
    endless = [*fast, "--sizes", "24", "--small-sizes", "24", *["512"] * 3000]
    job = subprocess.Popen(
        [sys.executable, str(SCRIPT), *endless],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    threading.Timer(8.0, job.send_signal, [signal.SIGTERM]).start()
    out, err = job.communicate(timeout=60)
    assert job.returncode == 1, err
    assert "24 on 1: " in out
    assert "Left out: what comes after the interruption" in out
    assert ("small", 1, 24) in measured(jsonl.read(str(path)))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--sizes", "100", "--gpus", "1", "3"], "100 rows cannot be scattered evenly to 3 ranks"),
        (["--sizes", "0"], "must be more than 0"),
        (["--rounds", "0"], "must be more than 0"),
        (["--json", "nowhere/lines.jsonl"], "there is no folder"),
        (["--from", "/dev/null"], "has no lines of scripts/bench_hosts.py"),
    ],
)
def test_what_cannot_be_measured_is_refused(capsys, arguments, text):
    assert cli.main(["--device", "cpu", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_without_a_gpu_nothing_stands_for_one_unasked(capsys):
    try:
        usable_gpus()
        pytest.skip("this machine has one")
    except DeviceUnavailable as missing:
        reason = str(missing)
    assert cli.main(["--sizes", "96"]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.exhaustive
@pytest.mark.launcher
def test_everything_runs_on_a_gpu(bench, capsys):
    code, lines = bench("--sizes", "512", "--wall-size", "512", device="cuda")
    out = capsys.readouterr().out
    assert code == 0, out
    assert {one["part"] for one in lines} >= {*PARTS_OF_ALL, *OF_CUBLASXT, "larger", "wall", "small"}
    assert "Not of a GPU" not in out
