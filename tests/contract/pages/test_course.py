# SPDX-License-Identifier: MIT
"""docs/course: a page's commands run one after the other in a folder, print what stands below them and draw the pictures that it
shows; so do its notebook's cells."""

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, module, start, successful

COURSE = ROOT / "docs" / "course"
PAGES = sorted(path.name for path in COURSE.glob("*.md"))
CHAPTERS = [name for name in PAGES if name != "index.md"]
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_BLOCK = re.compile(r"^```(\w+)\n((?:.*\n)*?)```$", re.MULTILINE)
_PICTURE = re.compile(r"--picture (\S+)")

runs = pytest.mark.needs("compiler", "addr2line")


def blocks(name):
    """The commands of each block, and the text that stands directly below it."""
    text = (COURSE / name).read_text(encoding="utf-8")
    found = list(_BLOCK.finditer(text))
    for number, block in enumerate(found):
        if block[1] == "bash":
            following = found[number + 1] if number + 1 < len(found) else None
            is_below = following and following[1] == "text" and not text[block.end() : following.start()].strip()
            yield block[2].splitlines(), following[2] if is_below else ""


def pattern(expected):
    """… stands for anything."""
    return re.escape(expected.strip("\n")).replace("…", r"[\s\S]*?")


def same_pictures(folder, names):
    """As those beside the page, to the rounding of another BLAS."""
    for name in names:
        there, here = ((place / name).read_text(encoding="utf-8") for place in (COURSE, folder))
        assert _NUMBER.sub("#", there) == _NUMBER.sub("#", here), name
        assert [float(each) for each in _NUMBER.findall(there)] == pytest.approx(
            [float(each) for each in _NUMBER.findall(here)], abs=0.2
        ), name


@runs
@pytest.mark.launcher
@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", PAGES)
def test_each_page_prints_and_draws_what_it_shows(tmp_path, name):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    drawn = []
    for lines, expected in blocks(name):
        printed = ""
        for line in lines:
            words, ranks = shlex.split(line), 0
            if words[:2] == ["mpirun", "-n"]:
                ranks, words = int(words[2]), words[3:]
            if words[:4] == ["python", "-m", "hybrid.lectures", "programs"] and (tmp_path / "programs").exists():
                continue
            assert words[0] == "python", line
            done = start([sys.executable, *words[1:]], ranks=ranks, cwd=tmp_path, limit=600, PATH=path)
            is_wrong = "hybrid.lab run" in line and "WRONG" in done.stdout
            assert done.returncode == is_wrong, f"{line}\n{done.stdout}{done.stderr}"
            printed += done.stdout
            drawn += _PICTURE.findall(line)
        assert re.search(pattern(expected), printed), f"{lines}\n{printed}"
    same_pictures(tmp_path, drawn)


@pytest.mark.parametrize("name", CHAPTERS)
def test_pictures_and_answers_of_a_page(name):
    """Each picture is drawn by a command on the page and small; each question has its answer, hidden."""
    text = (COURSE / name).read_text(encoding="utf-8")
    own = [target for target in re.findall(r"^!\[[^\]]{20,}\]\(([^)]+)\)$", text, re.MULTILINE) if "/" not in target]
    assert own == [picture for lines, _ in blocks(name) for picture in _PICTURE.findall("\n".join(lines))]
    assert own
    assert all((COURSE / target).stat().st_size < 64 << 10 for target in own)
    questions = len(re.findall(r"^\*\*Question\.\*\*", text, re.MULTILINE))
    answers = re.findall(r"^<details markdown><summary>Answer</summary>\n\n(?:.+\n)+\n</details>$", text, re.MULTILINE)
    assert len(answers) == questions >= 3


def test_no_picture_is_left_over():
    shown = [
        target for name in CHAPTERS for target in re.findall(r"\]\(([\w-]+\.svg)\)", (COURSE / name).read_text(encoding="utf-8"))
    ]
    assert sorted(shown) == sorted(path.name for path in COURSE.glob("*.svg"))


def test_notebooks_have_the_pages_commands_as_cells(tmp_path):
    """Without outputs; a cell draws the pictures of its commands."""
    successful(start(module("hybrid.lectures"), "notebooks", "course", cwd=tmp_path))
    assert sorted(path.stem for path in (tmp_path / "course").iterdir()) == sorted(Path(name).stem for name in CHAPTERS)
    for name in CHAPTERS:
        book = json.loads((tmp_path / "course" / name).with_suffix(".ipynb").read_text(encoding="utf-8"))
        cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
        assert not any(cell["outputs"] for cell in cells)
        for (lines, _), cell in zip(blocks(name), cells[1:], strict=True):
            source = "".join(cell["source"]).splitlines()
            assert source == [
                *(f"!{line}" for line in lines),
                *(f'display(SVG("{each}"))' for each in _PICTURE.findall("\n".join(lines))),
            ]


def executed(folder, book):
    from nbclient import NotebookClient

    NotebookClient(book, timeout=900, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell for cell in book.cells if cell.cell_type == "code"]


@runs
@pytest.mark.needs("notebooks")
@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", CHAPTERS)
def test_each_notebook_runs_and_prints_what_its_page_shows(tmp_path, name):
    import nbformat

    successful(start(module("hybrid.lectures"), "notebooks", "course", cwd=tmp_path))
    book = nbformat.read(tmp_path / "course" / Path(name).with_suffix(".ipynb"), 4)
    nbformat.validate(book)
    for (lines, expected), cell in zip(blocks(name), executed(tmp_path, book)[1:], strict=True):
        pictures = [each for each in cell.outputs if "image/svg+xml" in each.get("data", {})]
        assert len(pictures) == len(_PICTURE.findall("\n".join(lines)))
        printed = "".join(each.get("text", "") for each in cell.outputs).replace("\r\n", "\n")
        assert re.search(pattern(expected), printed), printed


@pytest.mark.exhaustive
@runs
@pytest.mark.needs("notebooks")
def test_a_cell_is_run_shown_and_checked_as_a_file_is(tmp_path):
    """%%cuda_lab, which docs/course/index.md shows."""
    import nbformat

    tiled = (ROOT / "docs/examples/tiled.cu").read_text(encoding="utf-8")
    cells = [
        "%load_ext hybrid.lab",
        f"%%cuda_lab --sizes 16 16 16\n{tiled}",
        f"%%cuda_lab show --width 4 --block 2,2\n{tiled.replace('16', '2')}",
        f"%%cuda_lab check tiles\n{tiled}",
        "%%cuda_lab --siezs 3\n// nothing",
        "%%cuda_lab -- 5\n#include <stdio.h>\n__global__ void k() {}\nint main(int n, char** v) { k<<<1, 1>>>(); puts(v[1]); }",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    _, *outputs = (cell.outputs for cell in executed(tmp_path, book))
    ran, shown, checked, refused, program = (
        "".join(each.get("text") or each.data["text/html"] for each in one) for one in outputs
    )
    assert ran.endswith("\nright\n")
    assert "<iframe srcdoc=" in shown
    assert "tiles: " in checked
    assert "--sizes" in refused
    assert "5\ncell.cu: exit status 0" in program
