# SPDX-License-Identifier: MIT
"""The command python -m hybrid.lectures: the lectures' scripts and example programs, wherever this package is installed; and the
course's pages as notebooks, with commands as cells and their expected output folded below."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import hybrid
from hybrid.commands.cli import run_alone
from hybrid.commands.parser import Parser
from hybrid.core.settings import one_of
from hybrid.errors import HybridError, UsageError

NAME = "hybrid.lectures"
PROGRAMS, NOTEBOOKS = "programs", "notebooks"
SCRIPTS = {  # what to type: the module of scripts/experiments, and what it shows
    "pmpp": ("lectures.figures:Pmpp.main", "one thread per row, column and element; matrix × vector; sizes of launches"),
    "2d": ("lectures.figures:TwoDimensions.main", "CUDA in two dimensions: CPU, global memory, shared memory"),
    "hochberg": ("lectures.figures:Hochberg.main", "with and without shared memory, against the matrices' size"),
    "siegel": ("lectures.figures:Siegel.main", "matrix multiplication in three programs, at 8000"),
    "largest": ("lectures.limits:Largest.main", "how large may matrices be, in core and out of core?"),
    "pascal": ("lectures.limits:Pascal.main", "how large may Pascal's triangle be?"),
    "ladder": ("lectures.ladder:Ladder.main", "every kernel of the catalogue, beside cuBLAS where there is a GPU"),
    "bugs": ("lectures.bugs", "the errors in teaching documents' CUDA programs, found without a GPU"),
}
_MORE = """\
examples:
  python -m hybrid.lectures siegel --quick
  python -m hybrid.lectures pmpp --help
  python -m hybrid.lectures programs && make -C programs lab
  python -m hybrid.lectures notebooks course
  python -m hybrid.lectures tiled.cu > tiled.cu && python -m hybrid.lab run tiled.cu
"""


def examples() -> dict[str, Path]:
    """The example programs, by the names of their files."""
    return {path.name: path for path in sorted(program_folders()[0].glob("*.cu"))}


def program_folders() -> tuple[Path, Path]:
    """The folders of the example programs, and of the documents' whole programs."""
    return _folder("classroom/examples", "docs/examples", "tiled.cu"), _folder("classroom/programs", "docs/programs", "Makefile")


def example_or_file(name: str) -> Path:
    """The example program of this name without .cu, as in `hybrid.lab run tiled`, else the file of this name."""
    return examples().get(f"{name}.cu", Path(name))


def _folder(installed: str, checkout: str, within: str) -> Path:
    """A folder of the installed package (relative to hybrid/) or of the checkout (relative to the repository). `within`: a file
    or folder that it must have."""
    package = Path(hybrid.__file__).resolve().parent
    for folder in (package / installed, package.parent / checkout):
        if (folder / within).exists():
            return folder
    raise HybridError(f"{package / installed} is missing: install this package again", code="installation")


def build_parser() -> Parser:
    parser = Parser(
        prog="python -m hybrid.lectures",
        usage="%(prog)s [NAME [ARGUMENT...]]",
        description="The lectures' scripts and example programs. Without a name they are listed.",
        epilog=_MORE,
    )
    what = "a lecture with its own options, a program, programs [FOLDER], or notebooks [FOLDER]"
    parser.add_argument("name", nargs="?", metavar="NAME", help=what)
    parser.offered["name"] = what_there_is()
    return parser


def what_there_is() -> list[str]:
    """All words that the command accepts."""
    return [*SCRIPTS, *examples(), PROGRAMS, NOTEBOOKS]


def parse() -> tuple[str, list[str]]:
    """The lecture or program to show ("" for the list), and the words that follow: its own options."""
    given = sys.argv[1:]
    if not given or given[0].startswith("-"):
        build_parser().parse_args(given)
        return "", []
    name, words = one_of("lecture", given[0], what_there_is()), given[1:]
    if name in SCRIPTS:
        return name, words
    if {"-h", "--help"} & set(words):
        build_parser().parse_args(["--help"])
    most = 1 if name in (PROGRAMS, NOTEBOOKS) else 0
    if len(words) > most or any(word.startswith("-") for word in words):
        raise UsageError(f"{name} takes {'the name of a folder' if most else 'nothing more'}: not {' '.join(words)}")
    return name, words


def work(name: str, words: list[str]) -> int:
    """Show or write it; returns the exit code."""
    if not name:
        for script, (_, summary) in SCRIPTS.items():
            print(f"  {script:<14}{summary}")
        print("\nprograms, to be shown, changed and given to python -m hybrid.lab run:")
        for program, path in examples().items():
            (summary,) = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("//")][1:2] or [""]
            print(f"  {program:<14}{summary.removeprefix('// ').rstrip()}")
        print("\nfolders that are written:")
        print(f"  {PROGRAMS:<14}the documents' whole programs, corrected, in C++ and CUDA, with a Makefile")
        print(f"  {NOTEBOOKS:<14}the pages of the course as Jupyter notebooks")
        return 0
    if name in examples():
        print(examples()[name].read_text(encoding="utf-8"), end="")
        return 0
    if name in (PROGRAMS, NOTEBOOKS):
        _write_folder(name, Path(words[0] if words else name))
        return 0
    # The scripts are no modules of this package.
    sys.path.insert(0, str(_folder("scripts", "scripts", "experiments")))
    sys.argv = [f"python -m {NAME} {name}", *words]
    return int(import_module("experiments.start").main_of(SCRIPTS[name][0])())


def _write_folder(name: str, folder: Path) -> None:
    """Write a new folder, whole or not at all: the documents' programs, or the course's pages except the first as notebooks."""
    if folder.exists():
        raise UsageError(f"{folder} is there already: name another folder to be written", code="file-exists")
    if name == PROGRAMS:
        source = program_folders()[1]
        programs = (source / "Makefile", *source.glob("*.cu"), *source.glob("*.h"))
        files = {path.name: path.read_text(encoding="utf-8") for path in programs}
    else:
        pages = _folder("classroom/course", "docs/course", "index.md").glob("*.md")
        chapters = [path for path in pages if path.name != "index.md"]
        files = {f"{path.stem}.ipynb": notebook(path.read_text(encoding="utf-8")) for path in chapters}
    try:
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.absolute().parent) as beside:
            whole = Path(beside, "whole")
            whole.mkdir()
            for file, text in files.items():
                (whole / file).write_text(text, encoding="utf-8")
            whole.rename(folder)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}", code="file-unwritable") from None
    print(f"{folder}: {', '.join(sorted(files))}")


_BLOCK = re.compile(r"^```(bash|text)\n((?:.*\n)*?)```\n", re.MULTILINE)
_PICTURE = re.compile(r"^!\[[^\]]*\]\((?!\w+:)[^)]*\)$", re.MULTILINE)
_DRAWN = re.compile(r"--picture (\S+)")
_RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:)[^)]*\)")
_BEGINNING = """\
import os, sys
from IPython.display import SVG, display
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]  # python is this notebook's
%load_ext hybrid.lab
"""


def notebook(page: str) -> str:
    """The notebook's JSON for a page; deterministic."""
    cells, end = [_code(_BEGINNING)], 0
    for block in _BLOCK.finditer(page):
        cells += _markdown(page[end : block.start()])
        if block[1] == "bash":
            lines = [f"!{line}" for line in block[2].splitlines()]
            cells.append(_code("\n".join([*lines, *(f'display(SVG("{name}"))' for name in _DRAWN.findall(block[2]))])))
        else:
            cells += _markdown(f"<details><summary>What it should print</summary>\n\n```text\n{block[2]}```\n\n</details>")
        end = block.end()
    cells += _markdown(page[end:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _code(text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": text.rstrip("\n").splitlines(keepends=True),
    }


def _markdown(text: str) -> list[dict[str, Any]]:
    """A cell with this text; none for no text. Removes links to other pages, which a notebook does not have, and pictures, which
    cells draw."""
    text = _RELATIVE_LINK.sub(r"\1", _PICTURE.sub("", text)).replace("<details markdown>", "<details>").strip()
    return [{"cell_type": "markdown", "metadata": {}, "source": text.splitlines(keepends=True)}] if text else []


def main() -> int:
    return run_alone(NAME, lambda: work(*parse()))
