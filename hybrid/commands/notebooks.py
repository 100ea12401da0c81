# SPDX-License-Identifier: MIT
"""Jupyter: the course's pages as notebooks, with commands as cells and their expected output folded below; and %%cuda_lab, which
gives a cell's code to python -m hybrid.lab."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from hybrid.errors import HybridError

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


_HEIGHT = 900  # pixels, of the frame with the steps' page


def cuda_lab(line: str, cell: str) -> Any:
    """Run the cell's kernel or program, as `hybrid.lab run` does; the line has its options.

    `%%cuda_lab show` draws the steps, `%%cuda_lab check EXERCISE` grades.
    """
    from hybrid.commands.lab import parse
    from hybrid.commands.lab_work import work

    words = shlex.split(line)
    command = words.pop(0) if words and words[0] in ("run", "show", "check") else "run"
    exercise = [words.pop(0)] if command == "check" and words else []
    with tempfile.TemporaryDirectory(prefix=f"hybrid-lab-{os.getpid()}-") as folder:
        file, page = Path(folder, "cell.cu"), Path(folder, "steps.html")
        file.write_text(cell, encoding="utf-8")
        drawn = ["--html", str(page)] if command == "show" else []
        try:
            work(parse([command, *exercise, str(file), *drawn, *words]))
        except HybridError as error:
            print(f"cuda_lab: {str(error).replace(str(file), 'the cell')}", file=sys.stderr)
        if not page.exists():
            return None
        from IPython.display import HTML

        steps = html.escape(page.read_text(encoding="utf-8"))  # a frame isolates the page's style and script
        return HTML(f'<iframe srcdoc="{steps}" width="100%" height="{_HEIGHT}" style="border: 0"></iframe>')
