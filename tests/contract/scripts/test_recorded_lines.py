# SPDX-License-Identifier: MIT
"""Every number of a measured table comes from a line in docs/measured, and pages are what the commands make of these lines."""

import json
import re
import sys

import pytest
from support.commands import ROOT, module, start, successful
from support.forked import quickly

MEASURED = sorted((ROOT / "docs" / "measured").glob("*.jsonl"))
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "kernels" / "README.md"]
MADE = {  # of recorded lines: the pages and pictures that are a part of the repository, and options
    "ladder": ("ladder-h200", "kernels/README.md", "docs/ladder.svg", "--sizes", "8192", "1000x8000x8000"),
    "bench_hosts": ("hosts-h100", "docs/benchmarks.md", ""),
}


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_recorded_lines_are_named_on_a_page_and_say_when_and_by_which_command():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [path.name for path in MEASURED if path.name not in pages] == []
    for path in MEASURED:
        lines = lines_of(path)
        assert lines, path
        for line in lines:
            assert (line["schema"], line["date"] >= "2026", bool(line["command"])) == (1, True, True), path
            assert "/work" not in json.dumps(line), path


BENCH = [sys.executable, ROOT / "scripts" / "bench.py"]
CASES = {line.split()[0] for line in quickly(BENCH).stdout.splitlines()}


def script(command):
    """What makes a table of lines of this command; None for the package's own commands."""
    case = command.removeprefix("bench_")
    return [*module("hybrid.lectures"), case] if case == "ladder" else [*BENCH, case] if case in CASES else None


TABLES = [path for path in MEASURED if script(lines_of(path)[0]["command"])]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_script_makes_its_table_of_recorded_lines(path):
    table = quickly(script(lines_of(path)[0]["command"]), "--from", path)
    assert table.returncode == 0, table.stderr
    assert len(table.stdout.splitlines()) >= 3


@pytest.mark.parametrize("name", MADE)
def test_tables_of_pages_and_pictures_are_those_that_the_command_makes_of_the_lines(tmp_path, name):
    lines, page, picture, *options = MADE[name]
    drawn = ["--picture", tmp_path / "made.svg"] if picture else []
    wanted = "--from", ROOT / "docs" / "measured" / f"{lines}.jsonl", "--markdown", *drawn, *options
    made = successful(start(script(name), *wanted)).stdout.splitlines()
    text = (ROOT / page).read_text(encoding="utf-8")
    between = re.search(r"<!-- (ladder|hosts) -->\n\n(?:!\[[^\n]*\n)?(.*?)<!-- /\1 -->", text, re.DOTALL)[2].splitlines()
    assert len(between) > 10
    assert [line for line in between if line not in {*made, ""}] == []
    if picture:
        assert (tmp_path / "made.svg").read_text(encoding="utf-8") == (ROOT / picture).read_text(encoding="utf-8")
