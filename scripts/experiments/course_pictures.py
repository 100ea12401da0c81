# SPDX-License-Identifier: MIT
"""Draws the pictures of docs/course anew: python scripts/course_pictures.py [--into FOLDER] [PAGE...]

Each is drawn by the command that stands above it on its page and says --picture. The tests compare the files with what these
commands draw.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.common import cli
from experiments.start import ROOT
from hybrid.errors import HybridError, UsageError

COURSE = ROOT / "docs" / "course"
_BLOCK = re.compile(r"^```bash\n((?:.*\n)*?)```$", re.MULTILINE)
_PICTURE = re.compile(r"--picture (\S+)")
_WRONG = 1  # the exit code where C is wrong, whose map is drawn


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Of each picture the command that draws it, and the file's name."""
    for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.splitlines():
            if picture := _PICTURE.search(line):
                yield line, picture[1]


def drawn(page: Path, folder: Path) -> list[Path]:
    """A page's pictures, written into this folder. HybridError where a command draws none."""
    files = []
    for line, name in commands(page):
        words = [sys.executable if word == "python" else word for word in shlex.split(line)]
        if not (folder / "programs").exists() and any(word.startswith("programs/") for word in words):
            subprocess.run([sys.executable, "-m", "hybrid.lectures", "programs"], cwd=folder, check=True, capture_output=True)
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode > _WRONG or not (folder / name).exists():
            raise HybridError(f"{page.name}: {line} draws no picture: {(done.stderr or done.stdout).strip()[-200:]}")
        files.append(folder / name)
    return files


def work(options: argparse.Namespace) -> int:
    if not COURSE.is_dir():
        raise UsageError("the course's pages lie in docs/course of a checkout")
    pages = [COURSE / name for name in options.pages] or sorted(COURSE.glob("*.md"))
    if missing := [page for page in pages if not page.is_file()]:
        raise UsageError(f"{missing[0]} is no page of the course")
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            for file in drawn(page, Path(folder)):
                (Path(options.into) / file.name).write_bytes(file.read_bytes())
                print(f"{page.name}: {file.name}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE.md", help="only these pages' pictures")
    parser.add_argument("--into", default=str(COURSE), metavar="FOLDER", help="where they are written (docs/course)")
    return cli.command(parser, work, arguments)
