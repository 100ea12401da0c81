# SPDX-License-Identifier: MIT
"""Every number of a measured table comes from a line in docs/measured, and pages are what the commands make of these lines."""

import json
import re
import shutil
import sys

import pytest
from support.commands import ROOT, start, successful
from support.forked import quickly

MEASURED = sorted((ROOT / "docs" / "measured").glob("*.jsonl"))
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "kernels" / "README.md"]
MADE = {  # of recorded lines, by a script's --write: the pages and pictures that are a part of the repository
    "ladder": ("ladder-h200", ["kernels/README.md", "docs/ladder.svg"]),
    "bench_hosts": ("hosts-h100", ["docs/benchmarks.md", "docs/hosts.svg"]),
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


FROM = [path for path in MEASURED if (ROOT / "scripts" / f"{lines_of(path)[0]['command']}.py").exists()]
NO_TABLE = {"ordeal"}  # which adds trials up
TABLES = [path for path in FROM if lines_of(path)[0]["command"] not in NO_TABLE]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_script_makes_its_table_of_recorded_lines(path):
    script = ROOT / "scripts" / f"{lines_of(path)[0]['command']}.py"
    table = quickly([sys.executable, script], "--from", path)
    assert table.returncode == 0, table.stderr
    assert len(table.stdout.splitlines()) >= 4


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("name", MADE)
def test_pages_and_pictures_are_those_that_the_command_makes_of_the_lines(tmp_path, name):
    lines, made = MADE[name]
    copy = tmp_path / "checkout"
    for part in ("hybrid", "scripts", "kernels", "docs"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "measured"))
    for file in made:
        page = copy / file
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace("| 8000 |", "| 8001 |").replace("8192", "8193"), encoding="utf-8")
    script = [sys.executable, copy / "scripts" / f"{name}.py"]
    successful(start(script, "--from", ROOT / "docs" / "measured" / f"{lines}.jsonl", "--write"))
    for file in made:
        assert made_part(copy / file) == made_part(ROOT / file), file


def made_part(path):
    """What --write has put between a page's markers, or the whole picture."""
    text = path.read_text(encoding="utf-8")
    found = re.search(r"<!-- (ladder|hosts) -->\n(.*)<!-- /\1 -->", text, re.DOTALL)
    return found[2] if found else text
