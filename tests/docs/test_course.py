# SPDX-License-Identifier: MIT
"""docs/course: a page's commands run one after the other in a folder and print what stands below them; so do its notebook's."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT
from support.selection import exhaustive

from experiments.course_pictures import commands, drawn
from hybrid.classroom.notebooks import notebook
from hybrid.ranks.launcher import mpirun

COURSE = ROOT / "docs" / "course"
PAGES = sorted(path.name for path in COURSE.glob("*.md"))
CHAPTERS = [name for name in PAGES if name != "index.md"]
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_BLOCK = re.compile(r"^```(\w+)\n((?:.*\n)*?)```$", re.MULTILINE)

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


@runs
@pytest.mark.launcher
@pytest.mark.parametrize("name", exhaustive(["tiling.md", "index.md"], PAGES))
def test_each_page_prints_what_it_shows(tmp_path, name):
    # The pages' commands, with this environment's programs first.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for lines, expected in blocks(name):
        printed = ""
        for line in lines:
            words = shlex.split(line)
            if words[:2] == ["mpirun", "-n"]:
                words = [*mpirun(int(words[2])), *words[3:]]
            if words[:4] == ["python", "-m", "hybrid.lectures", "programs"] and (tmp_path / "programs").exists():
                continue
            command = [sys.executable if word == "python" else word for word in words]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=100, cwd=tmp_path, env=environment, check=False
            )
            is_wrong = "hybrid.lab run" in line and "WRONG" in done.stdout
            assert done.returncode == is_wrong, f"{line}\n{done.stdout}{done.stderr}"
            printed += done.stdout
        assert re.search(pattern(expected), printed), f"{lines}\n{printed}"


@runs
@pytest.mark.needs("notebooks")
@pytest.mark.parametrize("name", exhaustive(["pmpp.md"], CHAPTERS))  # not the page that runs above by default
def test_each_notebook_runs_and_prints_what_its_page_shows(tmp_path, name):
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.reads(notebook((COURSE / name).read_text(encoding="utf-8")), 4)
    nbformat.validate(book)
    assert not any(cell.get("outputs") for cell in book.cells)
    NotebookClient(book, timeout=100, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = list(blocks(name))
    ran = [cell for cell in book.cells if cell.cell_type == "code"][1:]
    assert len(ran) == len(shown)
    for (lines, expected), cell in zip(shown, ran, strict=True):
        drawing = [f'display(SVG("{name}"))' for name in re.findall(r"--picture (\S+)", "\n".join(lines))]
        assert cell.source.splitlines() == [*(f"!{line}" for line in lines), *drawing]
        assert len([each for each in cell.outputs if "image/svg+xml" in each.get("data", {})]) == len(drawing)
        printed = "".join(each.get("text", "") for each in cell.outputs).replace("\r\n", "\n")
        assert re.search(pattern(expected), printed), printed


@runs
@pytest.mark.needs("notebooks")
def test_a_cell_is_run_shown_and_checked_as_a_file_is(tmp_path):
    import nbformat
    from nbclient import NotebookClient

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
    NotebookClient(book, timeout=100, resources={"metadata": {"path": str(tmp_path)}}).execute()
    ran, shown, checked, refused, program = (
        "".join(each.get("text") or each.data["text/html"] for each in cell.outputs) for cell in book.cells[1:]
    )
    assert "right in every order of the threads" in ran
    assert "<iframe srcdoc=" in shown
    assert "1 barrier passed" in shown
    assert "tiles: " in checked
    assert "cuda_lab: unknown option --siezs: did you mean --sizes?" in refused
    assert "5\ncell.cu: exit status 0" in program


@runs
@pytest.mark.parametrize("name", exhaustive(["tiling.md"], CHAPTERS))
def test_pictures_are_what_the_commands_draw(tmp_path, name):
    """python scripts/course_pictures.py draws them anew."""
    files = drawn(COURSE / name, tmp_path)
    assert files
    for file in files:
        there, here = ((folder / file.name).read_text(encoding="utf-8") for folder in (COURSE, tmp_path))
        assert _NUMBER.sub("#", there) == _NUMBER.sub("#", here), file.name
        for one, other in zip(_NUMBER.findall(there), _NUMBER.findall(here), strict=True):
            assert float(one) == pytest.approx(float(other), abs=0.2), file.name  # rounded otherwise by another BLAS


def test_each_picture_of_a_page_is_drawn_by_a_command_on_it():
    for name in CHAPTERS:
        text = (COURSE / name).read_text(encoding="utf-8")
        own = [target for target in re.findall(r"^!\[[^\]]{20,}\]\(([^)]+)\)$", text, re.MULTILINE) if "/" not in target]
        assert own == [picture for _, picture in commands(COURSE / name)]
        assert own
        assert all((COURSE / target).stat().st_size < 64 << 10 for target in own)
    all_of_them = [picture for name in CHAPTERS for _, picture in commands(COURSE / name)]
    assert sorted(all_of_them) == sorted(path.name for path in COURSE.glob("*.svg"))


def test_each_question_has_its_answer():
    for name in CHAPTERS:
        text = (COURSE / name).read_text(encoding="utf-8")
        questions = len(re.findall(r"^\*\*Question\.\*\*", text, re.MULTILINE))
        assert questions >= 3
        assert (
            len(re.findall(r"^<details markdown><summary>Answer</summary>\n\n(?:.+\n)+\n</details>$", text, re.MULTILINE))
            == questions
        )
