# SPDX-License-Identifier: MIT
"""The page about a student's kernel: counters stand beside their lines, nothing that the file says becomes HTML."""

from __future__ import annotations

import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.chromium import browser, chromium
from support.selection import exhaustive

from hybrid.commands import lab
from hybrid.errors import UsageError
from hybrid.reporting.lab_page import CaseView, LabPage, Note, page
from hybrid.reporting.lab_pictures import Roofline

TILED = Path(__file__).resolve().parents[2] / "docs" / "examples" / "tiled.cu"


class Elements(HTMLParser):
    """The tags, and the text of each row of the source."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self._row = [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "tr":
            self._row = dict(attributes).get("id")

    def handle_endtag(self, tag):
        if tag == "tr":
            self._row = None

    def handle_data(self, data):
        if self._row:
            self.rows[self._row] = self.rows.get(self._row, "") + data


def written(folder, *arguments):
    file = folder / "page.html"
    code = lab.work(lab.parse(["run", *map(str, arguments), "--html", str(file)]))
    return code, file.read_text(encoding="utf-8")


@pytest.mark.needs("compiler")
def test_counters_stand_beside_their_lines(tmp_path, capsys):
    code, text = written(tmp_path, TILED, "--sizes", "37", "37", "37", "--gpu", "H200")
    rows = Elements(text).rows
    assert code == 0
    assert "<h1>tiled.cu, MatrixMulKernel: right</h1>" in text
    assert "loads from M: " in rows["line-11"]
    assert "37×37: divergent in 66 of 387 executions by a warp" in rows["line-11"]
    assert "no bank conflicts" in rows["line-14"]
    assert rows["line-13"].strip() == "13        __syncthreads();"
    assert "Occupancy: " in text
    assert 'aria-label="roofline of H200"' in text


@pytest.mark.needs("compiler")
def test_a_wrong_kernel_gets_a_map_and_its_lines_are_marked(tmp_path, capsys):
    path = tmp_path / "late.cu"
    path.write_text(
        TILED.read_text().replace("if (row < Width && column < Width) P[", "if (column % 16 && row < Width && column < Width) P[")
    )
    code, text = written(tmp_path, path, "--sizes", "32", "32", "32")
    assert code == 1
    assert '<h1>late.cu, MatrixMulKernel: <span class="wrong">wrong</span></h1>' in text
    marks = re.findall(r'<rect class="fill-third" x="(\d+)" y="(\d+)" width="1" height="1"/>', text)
    assert {(int(x), int(y)) for x, y in marks} == {(x, y) for x in (0, 16) for y in range(32)}
    assert '<rect class="fill-second"' not in text


@pytest.mark.needs("compiler")
def test_what_the_file_says_stays_text(tmp_path, capsys):
    path = tmp_path / "<b>&.cu"
    path.write_text(TILED.read_text() + '\n// </td><script>alert("x")</script><img src="https://example.org/x.png">\n')
    code, text = written(tmp_path, path, "--sizes", "16", "16", "16")
    tags = Elements(text).tags
    assert code == 0
    assert not {"img", "link", "iframe", "b"} & {tag for tag, _ in tags}
    assert [attributes.get("id") for tag, attributes in tags if tag == "script"] == [
        "data",
        None,
    ]  # the steps, and what shows them
    assert not [value for _, attributes in tags for name, value in attributes.items() if name in ("src", "href", "onclick")]
    assert "&lt;script&gt;" in text
    assert "<title>&lt;b&gt;&amp;.cu, " in text


@pytest.mark.needs("compiler", "addr2line")
def test_the_page_shows_the_kernel_s_own_steps(tmp_path, capsys):
    """With small tiles where the file's can be changed: this kernel leaves out every other tile of M and N."""
    path = tmp_path / "half.cu"
    path.write_text(TILED.read_text().replace("k += TILE_WIDTH", "k += 2 * TILE_WIDTH"))
    code, text = written(tmp_path, path, "--sizes", "32", "32", "32")
    assert code == 1
    assert "P (4×4) = M (4×4) · N (4×4), 2×2 blocks of 2×2 threads, with tiles of 2</p>" in text
    program = chromium()
    if program is None:
        pytest.skip("no Chromium on this machine")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, browser(program, Path(folder)) as seen:
        for width, dark in ((390, False), (390, True), (1280, False), (1280, True)):
            seen.open(tmp_path / "page.html", width, dark=dark)
            assert seen.value("document.documentElement.scrollWidth") <= width
            assert (
                seen.value("document.getElementById('said').textContent")
                == "Block (0,0), step 1 of 5, 0 barriers passed, line 11"
            )
            seen.value("for (let i = 0; i < 9; ++i) document.getElementById('after').click()")
            touched = seen.value("[...document.querySelectorAll('#matrices .was')].map((each) => each.id).join()")
            assert touched == "cell-1-0,cell-1-1,cell-1-4,cell-1-5,cell-0-0,cell-0-1,cell-0-4,cell-0-5"
            assert seen.complaints() == []


@pytest.mark.needs("compiler", "addr2line")
def test_blocks_are_small_where_a_kernel_goes_by_blockdim(tmp_path, capsys):
    text = (Path(__file__).resolve().parent / "solutions" / "element.cu").read_text()
    path = tmp_path / "mine.cu"
    path.write_text(text)
    assert "2×2 blocks of 2×2 threads, with blocks of 2</p>" in written(tmp_path, path, "--sizes", "8", "8", "8")[1]
    path.write_text(text.replace("blockIdx.x * blockDim.x", "blockIdx.x * 16"))
    assert "1×1 blocks of 16×16 threads</p>" in written(tmp_path, path, "--sizes", "8", "8", "8")[1]


OF_NO_SMALL_TILES = {
    "the tile's number stands elsewhere": (
        {"e < TILE_WIDTH": "e < 16"},
        "P (16×16) = M (16×16) · N (16×16), 1×1 blocks of 16×16 threads</p>",
    ),
    "the launch does not follow": ({"#define": "// lab: block(16, 16)\n#define"}, "1×1 blocks of 16×16 threads</p>"),
    "small enough": (
        {"#define TILE_WIDTH 16": "const int T = 8;", "TILE_WIDTH": "T"},
        "P (16×16) = M (16×16) · N (16×16), 2×2 blocks of 8×8",
    ),
    "it ends its process": (
        {"P[row * Width": "P[100000000000 + row * Width"},
        "<p>MatrixMulKernel cannot be shown: SIGSEGV ended it",
    ),
}


@pytest.mark.needs("compiler", "addr2line")
@pytest.mark.parametrize("name", exhaustive(["the tile's number stands elsewhere", "it ends its process"], OF_NO_SMALL_TILES))
def test_steps_of_what_has_no_small_tiles(tmp_path, capsys, name):
    changes, said = OF_NO_SMALL_TILES[name]
    text = TILED.read_text()
    for old, new in changes.items():
        text = text.replace(old, new)
    path = tmp_path / "mine.cu"
    path.write_text(text)
    assert said in written(tmp_path, path, "--sizes", "16", "16", "16")[1]


@pytest.mark.needs("compiler", "addr2line")
def test_a_picture_is_the_map_of_what_is_wrong_or_the_roofline(tmp_path, capsys):
    run = ["run", str(TILED.with_name("element.cu")), "--picture", str(tmp_path / "it.svg")]
    assert lab.work(lab.parse([*run, "--sizes", "40", "40", "40", "--grid", "m/16,n/16"])) == 1
    drawn = (tmp_path / "it.svg").read_text(encoding="utf-8")
    wide, high = (
        '<rect class="fill-third" x="32" y="0" width="8" height="1"/>',
        '<rect class="fill-third" x="0" y="39" width="40"',
    )
    assert wide in drawn
    assert high in drawn
    assert "never written</text>" in drawn
    assert "prefers-color-scheme: dark" in drawn
    assert lab.work(lab.parse([*run, "--sizes", "16", "16", "16", "--gpu", "P100"])) == 0
    assert "MatrixMulKernel on P100, float32</text>" in (tmp_path / "it.svg").read_text(encoding="utf-8")
    (tmp_path / "it.svg").unlink()
    capsys.readouterr()
    assert lab.work(lab.parse([*run, "--sizes", "16", "16", "16"])) == 0
    assert "it.svg is not written: no C is wrong, and the roofline is drawn with --gpu NAME\n" in capsys.readouterr().out
    assert not (tmp_path / "it.svg").exists()
    with pytest.raises(UsageError, match=r"the name must end in \.svg"):
        lab.work(lab.parse(["run", str(TILED), "--picture", str(tmp_path / "it.png")]))


def test_of_hostile_numbers_a_roofline_is_drawn_within_its_frame():
    for bandwidth, peak, intensity in ((86, 346, 1e-4), (4800, 66900, 1e5), (320, 254, 0.06), (1, 1, 1)):
        drawn = page(LabPage("t", "right", True, (), (), (), {}, roofline=Roofline("G", bandwidth, peak, {"this": intensity})))
        places = [(float(x), float(y)) for x, y in re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)"', drawn)]
        places += [tuple(map(float, pair.split(","))) for pair in re.search(r'points="([^"]*)"', drawn)[1].split()]
        assert len(places) == 4
        assert all(40 <= x <= 350.1 and 19.9 <= y <= 205.1 for x, y in places), places


def test_neighbours_of_a_kind_are_one_rectangle():
    view = CaseView("h", False, ["f"], (), [[0, 1, 1, 3], [2, 2, 2, 2]], "an element")
    text = page(LabPage("t", "wrong", False, (), [view], ["a"], {1: [Note("n", True)]}))
    assert re.findall(r'<rect class="fill-(\w+)" x="(\d)" y="(\d)" width="(\d)"', text) == [
        ("second", "1", "0", "2"),
        ("first", "3", "0", "1"),
        ("third", "0", "1", "4"),
    ]
    assert "<span class=dear>n</span>" in text


def test_files_that_cannot_be_written_are_refused_before_the_work(tmp_path):
    with pytest.raises(UsageError, match="--html and --json name the same file"):
        lab.work(lab.parse(["run", str(TILED), "--html", str(tmp_path / "x"), "--json", str(tmp_path / "x")]))
    with pytest.raises(UsageError, match="there is no folder"):
        lab.work(lab.parse(["run", str(TILED), "--html", str(tmp_path / "none" / "x")]))
