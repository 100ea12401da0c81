# SPDX-License-Identifier: MIT
"""%%cuda_lab: python -m hybrid.lab for the code in a notebook's cell."""

from __future__ import annotations

import html
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from hybrid.errors import HybridError

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
        return _framed(page.read_text(encoding="utf-8")) if page.exists() else None


def _framed(page: str) -> Any:
    """The page in a frame, which keeps its style and script apart from the notebook's."""
    from IPython.display import HTML

    return HTML(f'<iframe srcdoc="{html.escape(page)}" width="100%" height="{_HEIGHT}" style="border: 0"></iframe>')
