# SPDX-License-Identifier: MIT
"""All figures of the lectures on one HTML page: python scripts/report.py [lines.jsonl ...] [--out report.html]

Takes the lines that lecture_pmpp, lecture_2d, lecture_hochberg, lecture_siegel, largest, pascal, ladder and bench_hosts, and
python -m hybrid.paths, have recorded with --json, and makes a page that needs no other file and no network: tables, pictures,
and with each the machine, the date and the command that gives it again. Without lines, or with --run, those that need no
recorded lines are run first; with --quick that takes a minute or so without a GPU.

What is missing is named on the page with the command that adds it. Lines that cannot be used are named there too, and the exit
code is 1. Where no line can be used no page is written, and one that is there stays as it is.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from experiments.common import cli, plots, tables
from experiments.page import html, runs
from experiments.page.lines import Found, found_in
from experiments.page.sections import SOURCES
from hybrid.errors import HybridError, UsageError, one_line
from hybrid.host import files

TITLE = "The lectures, redrawn"
LONGEST_REASON = 300


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    parser.add_argument("lines", nargs="*", metavar="lines.jsonl", help="recorded lines, the newest last")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page (report.html)")
    parser.add_argument("--run", action="store_true", help="run the lectures' scripts, beside the lines given")
    parser.add_argument("--quick", action="store_true", help="with small sizes")
    parser.add_argument("--json", metavar="FILE", help="append the lines of the scripts that are run")
    return cli.command(parser, make, arguments)


def make(options: argparse.Namespace) -> int:
    """The exit code. What can be refused is refused before anything is measured."""
    running = options.run or not options.lines
    if not running and (options.quick or options.json):
        raise UsageError("--quick and --json are for scripts that are run: add --run")
    plots.refuse_without_matplotlib()
    files.refuse_unwritable(options.out)
    for path in (*options.lines, *filter(None, [options.json])):
        files.refuse_same({path: path, "--out": options.out}, {})
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(options.json or Path(folder) / "lines.jsonl").resolve()
        failed = runs.run(options.quick, fresh) if running else []
        found = found_in([*options.lines, *([str(fresh)] if running and fresh.exists() else [])])
    return write(options.out, found, failed, shlex.join(["python", "scripts/report.py", *options.words]))


def write(path: str, found: Found, failed: Sequence[str], started: str) -> int:
    """The exit code. HybridError where there is nothing to show: then the file stays as it is."""
    sections, missing, not_shown, faults = [], [], list(found.unknown), [*failed, *found.broken]
    for source in SOURCES:
        lines = found.lines.get(source.name, [])
        not_shown += source.results.not_shown(lines) if lines else []
        try:
            section = source.section(lines) if lines else None
        except Exception as error:  # whatever strange lines do to a script's functions, the other sections are shown
            faults.append(f"{source.name}: its lines make no section ({one_line(error)})"[:LONGEST_REASON])
            continue
        if section is not None and section.figures:
            sections.append(section)
        else:
            missing.append(f"`{source.adds}` adds: {source.title}")
    for reason in (*not_shown, *faults):
        print(reason, file=sys.stderr)
    if not sections:
        raise HybridError(f"{path} is not written: no line makes one of its {len(SOURCES)} sections")
    notes = {"What is not here, and what adds it": missing, "Lines that are not shown": not_shown, "Faults": faults}
    introduction = ["Each figure with its machine, its date, and the command that gives it again.", f"This page: `{started}`"]
    listed = [tables.Remarks(lines, title) for title, lines in notes.items() if lines]
    text = html.page(TITLE, introduction, sections, listed)
    with files.atomic_write(path) as beside:
        beside.write_text(text, encoding="utf-8", errors="backslashreplace")
    print(f"{path}: {len(sections)} of {len(SOURCES)} sections")
    return 1 if faults else 0
