# SPDX-License-Identifier: MIT
"""The page that scripts/report.py makes: whole from recorded lines, undisturbed by hostile ones, and right in a real browser."""

from __future__ import annotations

import fcntl
import json
import re
import tempfile
from html import unescape
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chromium import browser, chromium
from support.recorded_lines import (
    LECTURES,
    PASCAL,
    PATHS,
    all_lines,
    hosts_lines,
    ladder_lines,
    largest_lines,
    lines_2d,
    siegel_lines,
    written,
    written_run,
)
from support.selection import exhaustive

from experiments.lectures import two_dimensions
from experiments.page import cli, html, inline_svg, runs
from experiments.page.lines import LONGEST, RESULTS, found_in
from experiments.page.sections import SOURCES
from experiments.start import ROOT
from hybrid.reporting import jsonl

pytest.importorskip("matplotlib")

NAMES = [source.name for source in SOURCES]
PICTURED = {*NAMES} - {"paths"}


@pytest.fixture(scope="module")
def lines_file(tmp_path_factory):
    return all_lines(tmp_path_factory.mktemp("lines") / "lines.jsonl")


@pytest.fixture(scope="module")
def page(lines_file, tmp_path_factory, worker_id):
    """Drawn once for all processes of a run of tests."""
    folder = tmp_path_factory.mktemp("page") if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    path = folder / "report.html"
    with open(folder / "report.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            assert cli.main([lines_file, "--out", str(path)]) == 0
    return path


class Parsed(HTMLParser):
    """What is in a page; what is opened must be closed."""

    VOID = ("meta", "br", "img", "link")

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.links, self.tables, self.captions, self.open = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert len(attributes) == len(dict(attributes)), attributes
        of_tag = dict(attributes)
        self.tags.append((tag, of_tag))
        self.ids += [of_tag["id"]] if "id" in of_tag else []
        self.links += [of_tag["href"]] if tag == "a" else []
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "figcaption":
            self.captions.append({})
        if tag not in self.VOID:
            self.open.append((tag, of_tag))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        tags = [tag for tag, _ in self.open]
        if {"td", "th"} & set(tags):
            self.tables[-1][-1][-1] += data
        if "dd" in tags:
            key = next(of_tag["class"] for tag, of_tag in self.open if tag == "dd")
            self.captions[-1][key] = self.captions[-1].get(key, "") + data

    def count(self, wanted):
        return sum(tag == wanted for tag, _ in self.tags)


def pictures_of(text):
    return [ElementTree.fromstring(picture) for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def visible(text):
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


# --- the page from recorded lines


def test_every_section_is_there_and_the_contents_lead_to_it(page):
    parsed = Parsed(page.read_text())
    assert [link[1:] for link in parsed.links] == NAMES
    assert set(NAMES) <= set(parsed.ids)
    assert len(parsed.ids) == len(set(parsed.ids)), "two pictures have a name in common"
    assert parsed.count("h1") == 1
    assert parsed.count("h2") == len(NAMES)


def test_every_figure_says_machine_date_and_command(page):
    parsed = Parsed(page.read_text())
    assert len(parsed.captions) == parsed.count("figure") == len(NAMES)
    for caption in parsed.captions:
        assert set(caption) == {"machine", "date", "command"}
        assert caption["machine"].strip()
        assert re.fullmatch(r"(\d{4}-\d\d-\d\d(, )?)+", caption["date"])
        assert "python" in caption["command"]
    told = [caption["command"] for caption in parsed.captions]
    assert "mpirun -n 2 python -m hybrid.paths ten --length 4" in told
    assert "python scripts/pascal.py --quick" in told
    assert "python scripts/bench_hosts.py --gpus 1 2 4 8 --json hosts.jsonl" in told


def test_no_table_is_empty(page):
    tables = Parsed(page.read_text()).tables
    assert len(tables) >= 15
    for rows in tables:
        assert len(rows) >= 2
        assert len({len(row) for row in rows}) == 1
        assert any(cell.strip() for row in rows[1:] for cell in row)


def test_pictures_are_part_of_the_page_and_drawn(page):
    text = page.read_text()
    pictures = pictures_of(text)
    assert len(pictures) == 2 * len(PICTURED), "each for a wide page and for a narrow one"
    for picture in pictures:
        shapes = [element for element in picture.iter() if element.tag.rpartition("}")[2] in ("path", "use", "text", "g")]
        assert len(shapes) > 50
        assert picture.attrib["role"] == "img"
        assert picture.attrib["aria-label"]
        assert not {"metadata", "style", "script"} & {element.tag.rpartition("}")[2] for element in picture.iter()}
        names = {element.attrib["id"] for element in picture.iter() if "id" in element.attrib}
        used = re.findall(r"url\(#([^)]+)\)", ElementTree.tostring(picture, encoding="unicode"))
        used += [value[1:] for element in picture.iter() for key, value in element.attrib.items() if key.endswith("}href")]
        assert used
        assert set(used) <= names
    assert "#333333" not in text
    assert "#000000" not in text


def test_on_a_narrow_page_every_panel_is_below_the_other(page):
    sizes = [[float(length) for length in picture.attrib["viewBox"].split()[2:]] for picture in pictures_of(page.read_text())]
    for (wide, _), (narrow, height) in zip(sizes[::2], sizes[1::2], strict=True):
        assert narrow == pytest.approx(4.6 * 72, abs=1)
        assert wide <= narrow or height > 150


def test_the_page_needs_nothing_else(page):
    text = page.read_text()
    tags = {tag for tag, _ in Parsed(text).tags}
    assert not tags & {"script", "link", "iframe", "object", "img", "base", "form"}
    without_names_of_formats = re.sub(r'xmlns(:\w+)?="http://www\.w3\.org/[^"]*"', "", text)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", without_names_of_formats)
    assert "default-src &#x27;none&#x27;" in text


def test_page_and_terminal_say_the_same(page, lines_file, capsys):
    assert two_dimensions.main(["--from", lines_file]) == 0
    text = visible(page.read_text())
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) > 15
    assert [line for line in lines if " ".join(line.split()) not in text] == []


@pytest.mark.exhaustive
def test_the_same_lines_make_the_same_page(page, lines_file):
    before = page.read_bytes()
    assert cli.main([lines_file, "--out", str(page)]) == 0
    assert page.read_bytes() == before


@pytest.mark.exhaustive
def test_without_a_gpu_every_section_is_there_too(tmp_path):
    out = tmp_path / "report.html"
    assert cli.main([all_lines(tmp_path / "l.jsonl", gpu=None), "--out", str(out)]) == 0
    parsed = Parsed(out.read_text())
    assert [link[1:] for link in parsed.links] == NAMES
    assert sum("no GPU" in caption["machine"] for caption in parsed.captions) == len(LECTURES) + 1


def test_what_is_missing_is_named_with_the_command_that_adds_it(tmp_path, capsys):
    out = tmp_path / "report.html"
    path = written_run(tmp_path / "l.jsonl", "largest", largest_lines())
    written_run(path, "lecture_2d", lines_2d(), ended=False)
    written_run(path, "largest", largest_lines(), run="2")
    for _ in range(12):
        jsonl.write({"command": "matmul", "n": 8}, path)
    assert cli.main([path, "--out", str(out)]) == 0
    text = visible(out.read_text())
    for source in SOURCES:
        assert (f"{source.adds} adds: {source.title}" in text) is (source.name != "largest")
    told = capsys.readouterr()
    for said in (
        "lecture_2d, run of 1: it did not come to its end",
        "largest, run of 1: the last one that came to its end is shown",
        "l.jsonl, 12 lines of matmul, which has no section here",
    ):
        assert said in text
        assert said in told.err
    assert f"1 of {len(NAMES)} sections" in told.out


def test_lines_of_other_machines_are_named(tmp_path):
    lines = (*ladder_lines()[:1], *hosts_lines()[:1])
    path = written(tmp_path / "l.jsonl", [{**line, "gpu": "NVIDIA A100"} for line in lines])
    out = tmp_path / "report.html"
    assert cli.main([path, written(tmp_path / "new.jsonl", lines), "--out", str(out)]) == 0
    text = visible(out.read_text())
    assert "ladder, lines of NVIDIA A100: those of NVIDIA H200 came later" in text
    assert "bench_hosts, lines of 8 × NVIDIA A100: those of 8 × NVIDIA H200 came later" in text


# --- lines that may be anything

SCRIPT = "<script>alert(1)</script>"
QUOTES = "\"'><img src=x onerror=alert(1)>"
BROKEN = {
    "no JSON": b"{broken",
    "no UTF-8": b'{"schema": 1, "command": "\xff"}',
    "no record": b"[1, 2]",
    "another schema": b'{"schema": 99, "command": "largest"}',
    "deep": b"[" * 100_000,
    "many digits": b'{"schema": 1, "command": "largest", "part": "resident", "seconds": ' + b"9" * 10_000 + b"}",
    "NaN": b'{"schema": 1, "command": "largest", "part": "resident", "n": NaN}',
    "a huge number": b'{"schema": 1, "command": "largest", "part": "resident", "seconds": ' + b"9" * 1_000 + b"}",
    "no keys": b'{"schema": 1, "command": "largest", "part": "resident"}',
    "no part": b'{"schema": 1, "command": "largest", "part": "<script>alert(1)</script>"}',
    "a part that is a list": b'{"schema": 1, "command": "largest", "part": ["resident"]}',
    "long": b'{"schema": 1, "command": "largest", "part": "' + b"x" * (LONGEST + 5) + b'"}',
    "rows that are short": json.dumps(
        {"schema": 1, "date": "2026-11-21", "machine": {"processor": "x", "cores": 1}, **PATHS, "numbers": [["1"], ["2", "3"]]}
    ).encode(),
    "markup that is no JSON": b"<script>alert(1)</script>",
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_line_is_named_and_the_others_are_taken(broken, lines_file, tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_bytes(b"".join([BROKEN[broken], b"\n", Path(lines_file).read_bytes(), BROKEN[broken]]))
    found, good = found_in([str(path)]), found_in([lines_file])
    assert found.lines == good.lines
    assert [text.split(":")[0].split(", of")[0] for text in found.broken] == [
        "broken.jsonl, line 1",
        f"broken.jsonl, line {2 + len(Path(lines_file).read_bytes().splitlines())}",
    ]
    assert not any("<" in text or len(text) > 200 for text in found.broken)
    assert not good.broken + good.unknown


@pytest.mark.exhaustive
def test_hostile_lines_leave_the_page_as_it_is(page, lines_file, tmp_path, capsys):
    hostile = tmp_path / f"{SCRIPT.replace('/', '')}.jsonl"
    text = b"\n".join(BROKEN.values()) + b"\n"
    text += json.dumps({"schema": 1, "command": SCRIPT}).encode() + b"\n"
    for line in (*ladder_lines()[:1], *hosts_lines()[:1]):
        for wrong in ({"kernel": SCRIPT, "part": SCRIPT}, {"n": 1e400, "seconds": "1"}, {"gpu": "$\\frac$"}, {"date": []}):
            text += json.dumps({"schema": 1, "machine": {"processor": "x", "cores": 1}, "versions": {}, **line, **wrong}).encode()
            text += b"\n"
    hostile.write_bytes(text)
    out = tmp_path / "report.html"
    assert cli.main([str(hostile), lines_file, "--out", str(out)]) == 1
    made = out.read_text()
    parsed = Parsed(made)
    assert "script" not in {tag for tag, _ in parsed.tags}
    assert parsed.tables == Parsed(page.read_text()).tables
    assert len(pictures_of(made)) == 2 * len(PICTURED)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;, which has no section here" in made
    said = capsys.readouterr().err
    assert "line 1: not JSON" in said
    assert re.search(r"jsonl: \d+ more", said), "of many only some are named, and the others counted"


def test_texts_of_good_lines_are_escaped(tmp_path):
    path = tmp_path / "l.jsonl"
    written_run(path, "lecture_2d", ({**line, "arguments": [QUOTES]} for line in lines_2d()), gpu=SCRIPT)
    jsonl.write({**PASCAL, "reasons": [SCRIPT, QUOTES, "`</code><script>`"], "arguments": [SCRIPT]}, str(path))
    corner = {"rows": [SCRIPT], "columns": [QUOTES], "numbers": [["&amp;"]]}
    jsonl.write({**PATHS, **corner, "arithmetic": SCRIPT, "graph": QUOTES}, str(path))
    out = tmp_path / "report.html"
    assert cli.main([str(path), "--out", str(out)]) == 0
    parsed = Parsed(out.read_text())
    assert not {"script", "img"} & {tag for tag, _ in parsed.tags}
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    assert [["from\\to", QUOTES], [SCRIPT, "&amp;"]] in parsed.tables
    (_, _, about_triangles, _) = pictures = pictures_of(out.read_text())
    assert any(SCRIPT in (element.text or "") for element in pictures[0].iter())
    assert any("float32" in (element.text or "") for element in about_triangles.iter())


def test_the_gpu_that_multiplied_the_triangles_is_named(tmp_path):
    path, out = str(tmp_path / "l.jsonl"), tmp_path / "report.html"
    for gpu in ("A GPU", 5):  # the lines may hold anything
        jsonl.write({**PASCAL, "gpu": gpu}, path)
    assert cli.main([path, "--out", str(out)]) == 0
    (caption,) = Parsed(out.read_text()).captions
    assert "A GPU" not in caption["machine"]  # the newest line counts
    jsonl.write({**PASCAL, "gpu": "A GPU"}, path)
    assert cli.main([path, "--out", str(out)]) == 0
    (caption,) = Parsed(out.read_text()).captions
    assert caption["machine"].startswith("A GPU, ")


def test_a_wrong_element_of_a_triangle(tmp_path):
    about = {"command": "pascal", "part": "one size", "arguments": ["--size", "57"], "dtype": "float64", "size": 57}
    wrong = {"size": 57, "row": 20, "column": 4, "value": -1.0}
    path = str(tmp_path / "l.jsonl")
    for value in (wrong, {**wrong, "value": "x"}, {"value": 1.0}, {**wrong, "more": 1}):
        jsonl.write({**about, "wrong": value, "ranks": "x"}, path)
    assert [text.split(": ")[1] for text in found_in([path]).broken] == ["what it has as wrong cannot be"] * 3
    out = tmp_path / "report.html"
    assert cli.main([path, "--out", str(out)]) == 1
    assert "float64 N = 57: [20][4] is -1, not 0" in visible(out.read_text())


def test_lines_that_make_no_section_leave_the_others(tmp_path, capsys):
    path = tmp_path / "l.jsonl"
    written_run(path, "lecture_2d", [line for line in lines_2d() if line["part"] != "roof"])
    written_run(path, "lecture_siegel", list(siegel_lines())[:2])
    written_run(path, "largest", largest_lines())
    out = tmp_path / "report.html"
    assert cli.main([str(path), "--out", str(out)]) == 1
    said = capsys.readouterr().err
    for name in ("lecture_2d", "lecture_siegel"):
        assert f"{name}: its lines make no section" in said
    assert "largest" in Parsed(out.read_text()).ids
    assert "lecture_2d: its lines make no section" in visible(out.read_text())


SCHEMAS = [
    (command, kind, key) for command, results in RESULTS.items() for kind, schema in results.schemas.items() for key in schema
]


def test_every_recorded_line_has_its_schema_and_each_key_counts(lines_file):
    seen = set()
    for line in jsonl.read(lines_file):
        results = RESULTS[line["command"]]
        kind = results.kind_of(line)
        assert results.fault(line) == ""
        if kind == "end" or (results.command, kind) in seen:
            continue
        seen.add((results.command, kind))
        for key in results.schemas[kind]:
            assert results.fault({name: value for name, value in line.items() if name != key})
            assert results.fault({**line, key: float("nan")}).startswith("what it has as")
    unseen = {(command, kind) for command, kind, _ in SCHEMAS} - seen
    assert unseen == {("bench_hosts", "left out"), ("pascal", "one size")}


def test_the_project_s_own_lines_are_good():
    measured = sorted(map(str, (ROOT / "docs" / "measured").glob("*.jsonl")))
    found = found_in(measured)
    assert found.broken == []
    assert set(found.lines) == set(NAMES)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(10**400), 10**400) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.sampled_from(SCHEMAS), ANYTHING)
def test_no_value_disturbs_the_look_at_a_line(place, value):
    command, kind, key = place
    line = {"part": kind, "way": kind, **dict.fromkeys(RESULTS[command].schemas[kind], value), key: value}
    assert isinstance(RESULTS[command].fault(line), str)


@given(st.text())
def test_any_text_is_text_on_the_page(text):
    assert re.sub(r"</?code>", "", html.inline(text)).count("<") == 0
    marked = unescape(html.inline(text).replace("<code>", "`").replace("</code>", "`"))
    assert marked == text


def test_names_inside_a_picture_and_its_colours():
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt" height="5pt"'
        ' viewBox="0 0 9 5"><defs><path id="m" style="stroke: #000000"/></defs><use xlink:href="#m" clip-path="url(#c)"/>'
        '<text style="fill: #333333">url(#m)</text></svg>'
    )
    part = inline_svg.part_of_page(svg, "one", "a <title>")
    assert 'id="one-m"' in part
    assert 'xlink:href="#one-m"' in part
    assert 'clip-path="url(#one-c)"' in part
    assert part.count("currentColor") == 2
    assert ">url(#m)<" in part
    assert "a &lt;title&gt;" in part
    assert ElementTree.fromstring(part).attrib["style"] == "--width: 9px"


# --- the command


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.jsonl"], 2, ": nowhere.jsonl cannot be read: No such file or directory\n"),
        (["."], 2, ". cannot be read: Is a directory"),
        (["l.jsonl", "--quick"], 2, "add --run"),
        (["l.jsonl", "--json", "more.jsonl"], 2, "add --run"),
        (["l.jsonl", "--out", "l.jsonl"], 2, "l.jsonl and --out name the same file"),
        (["--json", "report.html"], 2, "report.html and --out name the same file"),
        (["l.jsonl", "--out", "nowhere/r.html"], 2, "there is no folder"),
        (["--json", "nowhere/l.jsonl"], 2, "there is no folder"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("l.jsonl").touch()
    assert cli.main(arguments) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["l.jsonl"]


def test_a_page_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    lines_file, out = written(tmp_path / "l.jsonl", [PATHS]), tmp_path / "report.html"
    out.write_text("the old one")
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError("no room")))
    assert cli.main([lines_file, "--out", str(out)]) == 1
    assert out.read_text() == "the old one"
    assert {path.name for path in tmp_path.iterdir()} == {"l.jsonl", "report.html"}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (b"{broken", "l.jsonl, line 1: not JSON"),
        (b'{"schema": 1, "command": "matmul"}', "l.jsonl, 1 line of matmul, which has no section here"),
        (b"", ""),
    ],
)
def test_a_page_without_a_section_is_not_written(lines, reason, tmp_path, capsys):
    path, out = tmp_path / "l.jsonl", tmp_path / "report.html"
    path.write_bytes(lines)
    out.write_text("the old one")
    assert cli.main([str(path), "--out", str(out)]) == 1
    assert out.read_text() == "the old one"
    *reasons, last = capsys.readouterr().err.splitlines()
    assert last.endswith(f"{out} is not written: no line makes one of its {len(SOURCES)} sections")
    assert [told.startswith(reason) for told in reasons] == [True] * bool(reason)


@pytest.mark.launcher
def test_scripts_are_run_and_one_that_fails_is_named(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(runs, "LECTURES", ("pascal",))
    monkeypatch.setattr(runs, "PATHS", ("ten --length 4 --from C --to J", "ten --length x"))
    monkeypatch.setenv("HYBRID_DEVICE", "cpu")
    kept, out = tmp_path / "kept.jsonl", tmp_path / "report.html"
    assert cli.main(["--quick", "--json", str(kept), "--out", str(out)]) == 1
    text = visible(out.read_text())
    assert "python scripts/pascal.py --quick --json kept.jsonl" in text
    assert "python -m hybrid.paths ten --length 4 --from C --to J --json kept.jsonl" in text
    assert "python -m hybrid.paths ten --length x: exit code 2" in text
    lines = list(jsonl.read(str(kept)))
    assert len(lines) == 6
    assert next(line for line in lines if line.get("dtype") == "float64")["kernel"].startswith("blas (cpu, ")
    assert "2 of 9 sections" in capfd.readouterr().out
    assert cli.main([str(kept), "--out", str(out)]) == 0


def test_the_scripts_that_are_run_are_those_that_need_no_lines():
    words = [words for words in runs.commands(quick=True) if "-m" not in words]
    assert all(Path(script).is_file() and quick == "--quick" for script, quick in words)
    assert [Path(script).stem for script, _ in words] == [*LECTURES, "pascal"]


# --- in a browser


@pytest.mark.parametrize(("width", "dark"), exhaustive([(360, False), (1200, True)], product([360, 1200], [False, True])))
def test_in_a_browser(page, width, dark):
    program = chromium()
    if program is None:
        pytest.skip("no Chromium on this machine")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, browser(program, Path(folder)) as shown:
        shown.open(page, width, dark=dark)
        assert shown.value("innerWidth") == width
        assert shown.value("document.documentElement.scrollWidth") <= width
        assert shown.requested() == [page.as_uri()]
        assert shown.complaints() == []
        seen = "[...document.querySelectorAll('svg')].filter(e => e.checkVisibility())"
        assert shown.value(f"{seen}.length") == len(PICTURED)
        assert shown.value(f"{seen}.every(e => e.closest('.{'below' if width < 700 else 'beside'}'))")
        sizes = f"{seen}.map(e => e.getBoundingClientRect()).map(r => [r.width, r.height])"
        assert all(min(size) > 100 for size in shown.value(sizes))
        assert shown.value("[...document.querySelectorAll('table')].every(t => t.tBodies[0].innerText.trim())")
        assert shown.value("document.scripts.length") == 0
        outside = (
            "[...document.querySelectorAll('main *:not(.wide *)')].filter(e => e.getBoundingClientRect().right > innerWidth)"
        )
        assert shown.value(f"{outside}.map(e => e.outerHTML.slice(0, 300))") == []
        assert shown.value("getComputedStyle(document.body).backgroundColor") == (
            "rgb(21, 24, 27)" if dark else "rgb(255, 255, 255)"
        )
        colors = "[...document.querySelectorAll('svg text')].map(e => getComputedStyle(e).fill)"
        assert ("rgb(34, 38, 42)" in shown.value(colors)) is not dark, "axes are labelled in the page's colour"


def test_a_browser_s_complaint_is_heard(tmp_path):
    program = chromium()
    if program is None:
        pytest.skip("no Chromium on this machine")
    bad = tmp_path / "bad.html"
    bad.write_text("<body><img src=none.png><script>console.error('x'); undefined.x</script><p style='width:900px'>wide</p>")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, browser(program, Path(folder)) as shown:
        shown.open(bad, 360)
        assert len(shown.complaints()) >= 3
        assert len(shown.requested()) == 2
        assert shown.value("document.documentElement.scrollWidth") > 360
