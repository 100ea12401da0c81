# SPDX-License-Identifier: MIT
"""What docs/use.md says of a product's output: the table on the terminal, the JSON line, the trace and the file tell of the same
product; every key of the JSON line is on the page; the last line is for scripts."""

import json
import re
import resource
import signal
import subprocess
from itertools import pairwise
from statistics import median

import numpy as np
import pytest
from support.commands import ROOT, start, successful, under_a_launcher
from support.matmul import LAST_LINE, MATMUL, WAYS, good, line_of_failure, names_in, record, run

pytestmark = pytest.mark.launcher

PHASES = ["fill", "scatter", "copy in", "exchange", "multiply", "copy out", "gather", "check"]
N, L, M, REPEAT = 37, 23, 12, 3


def union(intervals):
    """The time in which any of them runs."""
    total, until = 0.0, -np.inf
    for begin, end in sorted(intervals):
        total, until = total + max(0.0, end - max(begin, until)), max(until, end)
    return total


def table_of(text):
    """The seconds (median, least, most) and shares of each row of the table."""
    rows = re.findall(r"^  (\w[\w ]*?) +(-?\d+\.\d{4})(?: +(\d+\.\d{4}) +(\d+\.\d{4}))? +(?:(-?\d+) %|–)", text, re.MULTILINE)
    return {name: (seconds, least, most, share) for name, seconds, least, most, share in rows}


def section_of_json():
    return (ROOT / "docs/use.md").read_text(encoding="utf-8").partition("### The JSON line")[2].partition("\n### ")[0]


def documented_keys():
    rows = [row.split("|")[1] for row in section_of_json().splitlines() if row.startswith("| `")]
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row)]


def told(folder, way):
    """All that a product tells in one run, and its product."""
    (folder / "runs.jsonl").write_text('{"schema": 1, "of": "an earlier run"}\n')
    done = good(
        *(N, L, M, "--fill", "uniform", "--seed", 5, "--repeat", REPEAT, "--warmup", 1, "--print", 40, "--out", "C.npy"),
        *("--json", "runs.jsonl", "--trace", "trace.json"),
        way=way,
        cwd=folder,
    )
    earlier, line = (folder / "runs.jsonl").read_text().splitlines()
    assert "an earlier run" in earlier
    assert names_in(folder) == ["C.npy", "runs.jsonl", "trace.json"]
    return done.stdout, json.loads(line), json.loads((folder / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize("way", ["alone", "staged", "2 nodes"])
def test_table_json_trace_and_file_tell_of_one_product(tmp_path, way):
    text, ran, events = told(tmp_path, way)
    ranks, nodes = max(1, WAYS[way][0]), 2 if way == "2 nodes" else 1
    lines = text.splitlines()
    # What was computed, by whom.
    heading = f"C ({N}×{M}) = A ({N}×{L}) · B ({L}×{M})  float64  {ranks} rank"
    assert lines[0].startswith(heading)
    assert f" on {nodes} node" in lines[0]
    of_ranks = [
        re.match(r"  rank (\d+)  (\S+)  cores ([\d,-]+)  (\d+) threads? \(.+\)  rows (\d+:\d+)$", line) for line in lines[1:]
    ]
    told_ranks = [found.groups() for found in of_ranks if found]
    placed = [tuple(str(each[key]) for key in ("rank", "host", "cores", "threads", "rows")) for each in ran["placements"]]
    assert told_ranks == placed
    ends = [tuple(map(int, each["rows"].split(":"))) for each in ran["placements"]]
    assert [ends[0][0], ends[-1][1]] == [0, N]
    assert all(before[1] == after[0] for before, after in pairwise(ends))
    asked = {"command": "matmul", "schema": 1, "n": N, "l": L, "m": M, "dtype": "float64", "ranks": ranks, "nodes": nodes}
    asked |= {"device": "cpu", "kernel": "blas", "fill": "uniform", "seed": 5, "a": None, "b": None, "repeat": REPEAT}
    asked |= {"warmup": 1, "operands": "float64", "computed": "float64", "products": 1, "grid": None}
    assert {key: ran[key] for key in asked} == asked
    # Their elements: the printed ones are those of the file.
    shown = dict(re.findall(r"^([ABC]) \(\d+×\d+\)\n((?:[^\n]+\n)+)\n", text, re.MULTILINE))
    a, b, c = (np.array([row.split() for row in shown[label].splitlines()], float) for label in "ABC")
    written = np.load(tmp_path / "C.npy")
    assert (a.shape, b.shape, c.shape, written.dtype) == ((N, L), (L, M), (N, M), np.float64)
    np.testing.assert_allclose(c, written, atol=6e-7)
    np.testing.assert_allclose(a @ b, written, atol=1e-6 * 2 * L)
    # Their times.
    table = table_of(text)
    assert [row for row in table if row not in ("between", "overlap", "prepare")] == [
        phase for phase in PHASES if phase in ran["seconds"]
    ]
    assert {"fill", "scatter", "multiply", "gather", "check"} <= set(ran["seconds"])
    for phase, spread in ran["seconds"].items():
        assert table[phase][:3] == tuple(f"{spread[key]:.4f}" for key in ("median", "min", "max")), phase
        assert 0 <= spread["min"] <= spread["median"] <= spread["max"]
    assert sum(int(share) for *_, share in table.values() if share) == 100
    measured = sum(ran["seconds"][phase]["median"] for phase in table if phase in ran["seconds"] and table[phase][3])
    for rest in {"between", "overlap"} & set(table):
        assert float(table[rest][0]) == pytest.approx(ran["total"]["median"] - measured, abs=1e-4)
    parts = {name: seconds for name, seconds in ran["wall"].items() if name != "total"}
    assert sum(parts.values()) == pytest.approx(ran["wall"]["total"])
    assert parts["product"] >= REPEAT * ran["total"]["min"]
    (wall,) = [line for line in lines if line.startswith("wall ")]
    of_wall = dict(re.findall(r"([A-Za-z][A-Za-z -]*) (\d+\.\d\d)", wall.partition(": ")[2]))
    assert of_wall
    assert all(float(seconds) == pytest.approx(parts[name], abs=0.05) for name, seconds in of_wall.items() if name != "end")
    assert ran["rate"] == pytest.approx(2 * N * L * M / ran["total"]["median"])
    assert LAST_LINE.fullmatch(lines[-1])
    assert lines[-1].startswith(f"total {ran['total']['median']:.4f} s")
    assert (ran["check"]["ok"], ran["check"]["faults"]) == (True, [])
    assert ran["check"]["error"] <= ran["check"]["tolerance"]
    # The trace: a process for each rank, and the phases' times once more.
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {each["rank"]: f"rank {each['rank']} on {each['host']}" for each in ran["placements"]}
    pieces = [event for event in events if event["ph"] == "X"]
    rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert all(rows[event["pid"], event["tid"]] == event["name"] and event["dur"] >= 0 for event in pieces)
    for phase in {event["name"] for event in pieces} - {"fill", "prepare"}:
        slowest = [
            max(
                union([(event["ts"], event["ts"] + event["dur"]) for event in pieces
                       if (event["pid"], event["name"], event["args"]["repeat"]) == (rank, phase, repeat)])
                for rank in names
            )
            for repeat in range(REPEAT)
        ]  # fmt: skip
        assert median(slowest) / 1e6 == pytest.approx(ran["seconds"][phase]["median"], abs=2e-6), phase
    by_row = {}
    for event in sorted(pieces, key=lambda event: event["ts"]):
        at = event["pid"], event["tid"]
        assert by_row.get(at, -np.inf) <= event["ts"] + 1e-3, "what overlaps has rows of its own"
        by_row[at] = event["ts"] + event["dur"]


def test_every_key_of_the_json_line_is_on_the_page(tmp_path):
    keys = documented_keys()
    assert len(keys) == len(set(keys))
    assert set(record(8, 8, 8)) == set(keys) - {"resume"}
    everything = record(8, 8, 8, "--resume", "--out", "C.npy", cwd=tmp_path)
    assert set(everything) == set(keys)
    for key in ("check", "resume"):
        (row,) = [row for row in section_of_json().splitlines() if row.startswith(f"| `{key}`")]
        assert set(everything[key]) <= set(re.findall(r"`(\w+)`", row)), key


def test_the_json_line_on_standard_output_is_all_there_is():
    done = good(8, 8, 8, "--json", "-")
    assert json.loads(done.stdout)["n"] == 8
    assert LAST_LINE.fullmatch(done.stderr.splitlines()[-1])


def test_print_shows_ten_by_default_and_says_what_it_is_part_of():
    matrices = good(20, 30, 12, "--fill", "index", "--print").stdout.split("\n\n")
    heads = ["A (20×30), its top left 10×10", "B (30×12), its top left 10×10", "C (20×12), its top left 10×10"]
    shown = [matrix.splitlines()[-11:] for matrix in matrices[:3]]
    assert [each[0] for each in shown] == heads
    assert shown[0][2] == " ".join(f"{30 + column:.6f}" for column in range(10)) + " "
    assert all([len(line.split()) for line in each[1:]] == [10] * 10 for each in shown)


def test_the_check_of_an_empty_product_is_exact():
    ran = record(0, 8, 8)["check"]
    assert (ran["kind"], ran["error"], ran["tolerance"], ran["ok"]) == ("exact", 0, 0, True)


def test_a_check_that_is_off_is_said():
    ran = record(8, 8, 8, "--no-check")
    assert ran["check"] == {"kind": "off", "error": None, "tolerance": None, "ok": None}
    assert good(8, 8, 8, "--check", "off").stdout.splitlines()[-1].endswith("check off")


def test_nan_and_infinity_are_null_in_the_json_line(tmp_path):
    np.save(tmp_path / "A.npy", np.full((3, 3), np.nan))
    done = good(3, 3, 3, "--a", "A.npy", "--json", "r.jsonl", "--print", "--out", "C.npy", cwd=tmp_path)
    ran = json.loads((tmp_path / "r.jsonl").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert ran["check"]["kind"] == "none"
    assert "check impossible" in done.stdout.splitlines()[-1]
    assert "nan nan nan" in done.stdout
    assert np.isnan(np.load(tmp_path / "C.npy")).all()


@pytest.mark.parametrize(("way", "at", "product"), [("alone", 0, "warm-up product 1"), ("2 ranks", 3, "product 3 of 5")])
def test_a_wrong_product_ends_with_3_writes_no_file_and_is_told_whole(tmp_path, way, at, product):
    """Three wrong places at most are printed, the JSON line has all."""
    rank = 1 if way == "2 ranks" else 0
    done = run(
        *(600, 40, 600, "--fill", "normal", "--warmup", 1, "--repeat", 5, "--out", "C.npy", "--json", "r.jsonl", "--print", 2),
        planted=[f"multiply rank={rank} at={at} how=element"],
        way=way,
        cwd=tmp_path,
    )
    assert done.returncode == 3, done.stderr
    assert names_in(tmp_path) == ["r.jsonl"]
    last, ran = done.stdout.splitlines()[-1], json.loads((tmp_path / "r.jsonl").read_text())
    assert "check FAILED" in last
    assert ran["check"]["ok"] is False
    printed = [line.removeprefix("wrong: ") for line in done.stdout.splitlines() if line.startswith("wrong: ")]
    faults = ran["check"]["faults"]
    assert printed == [f"{fault['text']} [{fault['code']}]" for fault in faults[:3]]
    assert faults[0]["code"] == "check-product"
    assert product in printed[0]
    assert f"rank {rank} on {ran['placements'][0]['host']}" in printed[0]


def test_a_line_that_cannot_be_written_whole_is_not_begun(tmp_path):
    good(3, 3, 3, "--json", "r.jsonl", cwd=tmp_path)
    whole = (tmp_path / "r.jsonl").read_bytes()

    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 100,) * 2)

    done = subprocess.run(
        [*MATMUL, "3", "3", "3", "--json", tmp_path / "r.jsonl"],
        capture_output=True, text=True, timeout=120, preexec_fn=small_files, check=False,
    )  # fmt: skip
    assert "r.jsonl" in line_of_failure(done, 1)
    assert (tmp_path / "r.jsonl").read_bytes() == whole


def test_the_wall_time_begins_with_the_launcher(tmp_path):
    """Which is a shell here that waits for half a second."""
    launcher = [*under_a_launcher(tmp_path)[:2], 'sleep 0.5; "$0" "$@"; exit $?']
    done = successful(start([*launcher, *MATMUL], 8, 8, 8, "--json", "-"))
    assert json.loads(done.stdout)["wall"]["start"] >= 0.48  # by clock ticks
    assert record(8, 8, 8)["wall"]["start"] > 0


def test_jobs_that_write_one_file_of_lines_at_once_write_whole_lines(tmp_path):
    command = [*MATMUL, "8", "8", "8", "--json", str(tmp_path / "r.jsonl")]
    jobs = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [job.wait(120) for job in jobs] == [0] * 2
    assert [json.loads(line)["n"] for line in (tmp_path / "r.jsonl").read_text().splitlines()] == [8] * 2
