# SPDX-License-Identifier: MIT
"""Runs as JSON lines, written and read."""

from __future__ import annotations

import json
import math
import multiprocessing
from datetime import datetime

import pytest

from hybrid.errors import UsageError
from hybrid.reporting import jsonl


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "runs.jsonl")


def test_what_is_written_is_read_again_in_its_order_with_what_it_depends_on(path):
    first = {"n": 5, "dtype": "float32", "seconds": {"multiply": {"median": 0.25}}, "placements": [{"gpu": None}], "name": "×"}
    jsonl.write(first, path)
    jsonl.write({"n": 6}, path)
    runs = list(jsonl.read(path))
    assert [run["n"] for run in runs] == [5, 6]
    assert first.items() <= runs[0].items()
    assert runs[0]["schema"] == jsonl.SCHEMA
    assert datetime.fromisoformat(runs[0]["date"]).tzinfo is not None
    assert {"python", "numpy"} <= set(runs[0]["versions"])
    assert runs[0]["machine"]["cores"] >= 1


def test_each_record_is_one_line_that_any_json_reader_takes(path):
    jsonl.write({"text": "two\nlines"}, path)
    jsonl.write({}, path)
    with open(path) as written:
        lines = written.read().splitlines()
    assert [json.loads(line).get("text") for line in lines] == ["two\nlines", None]


def test_nan_and_infinity_become_null_wherever_they_are(path):
    jsonl.write({"a": math.nan, "b": {"c": [1.5, math.inf, (-math.inf,)]}, "d": 0.0}, path)
    with open(path) as written:
        assert "NaN" not in (text := written.read())
        assert "Infinity" not in text
    (run,) = jsonl.read(path)
    assert (run["a"], run["b"], run["d"]) == (None, {"c": [1.5, None, [None]]}, 0.0)


def test_a_dash_prints_the_line(path, capsys):
    jsonl.write({"n": 7}, "-")
    assert json.loads(capsys.readouterr().out)["n"] == 7


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "not JSON"),
        ("", "not JSON"),
        ("[1, 2]", "not a record of schema 1"),
        ("5", "not a record of schema 1"),
        ("\udcff", r"not JSON \(no UTF-8\)"),
        ("[" * 100_000, "not JSON"),
        ("1" * 5000, "not"),
        ('{"n": 5}', "not a record of schema 1"),
        ('{"schema": 2}', "not a record of schema 1"),
    ],
)
def test_a_line_that_is_no_record_is_named_by_its_number(path, line, message):
    jsonl.write({"n": 1}, path)
    jsonl.write({"n": 2}, path)
    with open(path, "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(line + "\n")
    reading = jsonl.read(path)
    assert [next(reading)["n"], next(reading)["n"]] == [1, 2]
    with pytest.raises(UsageError, match=rf"runs\.jsonl, line 3: {message}"):
        next(reading)


def test_an_empty_file_holds_no_records(tmp_path):
    (tmp_path / "runs.jsonl").touch()
    assert list(jsonl.read(str(tmp_path / "runs.jsonl"))) == []


def _write_many(path, writer, count):
    for index in range(count):
        jsonl.write({"writer": writer, "index": index, "long": "x" * 50_000}, path)


def test_several_writers_at_once_append_whole_lines(path):
    writers, count = 4, 15
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_write_many, args=(path, writer, count)) for writer in range(writers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * writers
    runs = list(jsonl.read(path))
    assert all(len(run["long"]) == 50_000 for run in runs)
    for writer in range(writers):
        assert [run["index"] for run in runs if run["writer"] == writer] == list(range(count))
