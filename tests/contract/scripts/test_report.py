# SPDX-License-Identifier: MIT
"""python -m hybrid.lectures report makes one page of recorded lines: whole, their texts escaped, right in a browser."""

import json
import re
import tempfile
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.chromium import browser, chromium
from support.commands import ROOT, module, start, successful
from support.forked import quickly
from support.pages import Page
from support.selection import exhaustive

pytest.importorskip("matplotlib")

REPORT = [*module("hybrid.lectures"), "report"]
MEASURED = [ROOT / "docs" / "measured" / f"{name}.jsonl" for name in ("lectures-h200", "ladder-h200")]
SCRIPT = "<script>alert(1)</script>"
QUOTES = "\"'><img src=x onerror=alert(1)>"
PATHS = {
    "schema": 1, "date": "2026-11-27T10:00:00+00:00", "machine": {"processor": "x", "cores": 1}, "command": "paths",
    "arguments": ["ten", "--length", "4"], "graph": "ten", "length": 4, "ranks": 2, "arithmetic": "exact", "products": 2,
    "seconds": 0.5, "rows": ["A", "B"], "columns": ["A", "B"], "numbers": [["12", "14"], ["14", "30"]],
}  # fmt: skip


def visible(text):
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


def written(path, *lines):
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    paths = written(folder / "paths.jsonl", PATHS)
    successful(start(REPORT, *MEASURED, paths, "--out", folder / "report.html", limit=120))
    return folder / "report.html"


def test_every_section_has_a_table_a_picture_and_its_machine_date_and_command(page):
    text = page.read_text(encoding="utf-8")
    parsed = Page(text)
    sections, ids = [link[1:] for link in parsed.attributes("href")], parsed.attributes("id")
    assert {"ladder", "lecture_2d", "lecture_pmpp", "lecture_hochberg", "lecture_siegel", "paths"} <= set(sections)
    assert set(sections) <= set(ids)
    assert len(ids) == len(set(ids))
    assert parsed.names.count("h2") == len(sections) <= parsed.names.count("figure")
    assert parsed.names.count("table") >= len(sections)
    shown = visible(text)
    commands = "python -m hybrid.lectures ladder", "mpirun -n 2 python -m hybrid.paths ten --length 4"
    assert all(command in shown for command in commands)
    pictures = [ElementTree.fromstring(picture) for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    assert len(pictures) == 4, "of ladder, 2d, hochberg and siegel"
    assert all(picture.attrib["aria-label"] for picture in pictures)
    # It needs no other file and no network.
    assert not set(parsed.names) & {"script", "link", "iframe", "object", "img", "base", "form"}
    without_names_of_formats = re.sub(r'xmlns(:\w+)?="http://www\.w3\.org/[^"]*"', "", text)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", without_names_of_formats)


NO_RECORDS = {"no JSON": "{broken\n", "no record": "[1, 2]\n", "another schema": {"schema": 99, "command": "largest"},
              "deep": "[" * 100_000 + "\n"}  # fmt: skip
UNUSABLE = {
    "NaN": '{"schema": 1, "command": "ladder", "part": "resident", "n": NaN}\n',
    "no keys": {"schema": 1, "command": "ladder", "part": "resident"},
    "rows that are short": {**PATHS, "numbers": [["1"], ["2", "3"]]},
}


def test_what_is_missing_is_named_with_the_command_that_adds_it_and_so_are_sections_that_cannot_be_made(tmp_path):
    good, bad = written(tmp_path / "good.jsonl", PATHS), written(tmp_path / "bad.jsonl", *list(UNUSABLE.values())[:2])
    alone, beside = tmp_path / "alone.html", tmp_path / "beside.html"
    successful(quickly(REPORT, good, "--out", alone))
    shown = visible(alone.read_text(encoding="utf-8"))
    added = ("hybrid.lectures ladder", "hybrid.lectures pascal", "hybrid.lectures largest")
    assert all(command in shown for command in added)
    ran = quickly(REPORT, bad, good, "--out", beside)
    assert (ran.returncode, ran.stderr.count("\n"), "ladder" in ran.stderr) == (1, 1, True)
    made = [Page(path.read_text(encoding="utf-8")) for path in (alone, beside)]
    assert made[0].cells == made[1].cells


@pytest.mark.parametrize("name", exhaustive(["deep", "no keys"], [*NO_RECORDS, *UNUSABLE]))
def test_where_no_line_can_be_used_the_page_stays_as_it_is(tmp_path, name):
    out = tmp_path / "report.html"
    out.write_text("the old one")
    ran = quickly(REPORT, written(tmp_path / "bad.jsonl", {**NO_RECORDS, **UNUSABLE}[name]), "--out", out)
    assert ran.returncode == (2 if name in NO_RECORDS else 1)
    assert ("bad.jsonl, line 1" in ran.stderr) is (name in NO_RECORDS)
    assert out.read_text() == "the old one"


def test_texts_of_good_lines_are_escaped(tmp_path):
    out = tmp_path / "report.html"
    hostile = {**PATHS, "rows": [SCRIPT, QUOTES], "graph": QUOTES, "arithmetic": SCRIPT, "arguments": [SCRIPT]}
    successful(quickly(REPORT, written(tmp_path / "l.jsonl", hostile), "--out", out))
    parsed = Page(out.read_text(encoding="utf-8"))
    assert not {"script", "img"} & set(parsed.names)
    assert {SCRIPT, QUOTES} <= set(parsed.cells)


@pytest.mark.exhaustive
@pytest.mark.needs("compiler", "mpirun")
def test_without_lines_the_experiments_are_run(tmp_path):
    kept, out = tmp_path / "kept.jsonl", tmp_path / "report.html"
    successful(start(REPORT, "--quick", "--json", kept, "--out", out, limit=600))
    assert {"pascal", "paths", "lecture_2d"} <= {json.loads(line)["command"] for line in kept.read_text().splitlines()}
    successful(start(REPORT, kept, "--out", out))


@pytest.mark.exhaustive
def test_in_a_browser(page):
    program = chromium()
    if program is None:
        pytest.skip("needs Chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, browser(program, Path(folder)) as shown:
        for width, dark, color in ((390, False, "rgb(255, 255, 255)"), (1280, True, "rgb(21, 24, 27)")):
            shown.open(page, width, dark=dark)
            assert shown.value("document.documentElement.scrollWidth") <= width
            seen = "[...document.querySelectorAll('svg')].filter(e => e.checkVisibility())"
            sizes = f"{seen}.map(e => e.getBoundingClientRect()).map(r => [r.width, r.height])"
            assert all(min(size) > 100 for size in shown.value(sizes))
            assert shown.value("[...document.querySelectorAll('table')].every(t => t.tBodies[0].innerText.trim())")
            assert shown.value("getComputedStyle(document.body).backgroundColor") == color
        assert set(shown.requested()) == {page.as_uri()}
        assert shown.complaints() == []
