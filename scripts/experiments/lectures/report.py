# SPDX-License-Identifier: MIT
"""All figures of the lectures on one HTML page: python -m hybrid.lectures report [lines.jsonl ...] [--out report.html]

Takes the lines that the lectures and python -m hybrid.paths have recorded with --json, and makes a page that needs no other file
and no network: tables, pictures, and with each the machine, the date and the command that gives it again. Without lines, or with
--run, those that need no recorded lines are run first; with --quick that takes a minute or so without a GPU.

What is missing is named on the page with the command that adds it, as are sections whose lines cannot be used: then the exit code
is 1. Where no line can be used no page is written, and one that is there stays as it is.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.common import cli, plots, results
from hybrid.core.text import counted
from hybrid.errors import HybridError, UsageError, one_line
from hybrid.host.files import refuse_same, refuse_unwritable
from hybrid.reporting import html_page, jsonl

TITLE = "The lectures, redrawn"
LECTURES = {  # modules, by what is typed
    "pmpp": "pmpp", "2d": "two_dimensions", "hochberg": "hochberg", "siegel": "siegel", "largest": "largest", "pascal": "pascal"
}  # fmt: skip
PATHS = ("ten --length 4", "ten --length 4 --from C --to J", "five --length 2000 --from A --to B")
_LONGEST_REASON = 300
_STYLE = """\
main { max-width: 78rem; }
section { border-top: 1px solid var(--line); margin-top: 2.2rem; }
figure { margin: 1.2rem 0 0; }
table { width: auto; overflow-wrap: normal; }
th, td { white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
.r { text-align: right; }
.wide { overflow-x: auto; margin: 0.3rem 0 1.2rem; }
svg { display: block; max-width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: 0.85rem; }
figcaption code { display: block; }
"""


class Paths(results.Results):
    """Paths of a length, counted exactly

    How many walks of a length lead from where to where? The entries of the adjacency matrix's power, whole numbers of any size;
    of long ones the first and the last digits are shown.
    """

    command, again = "paths", "python -m hybrid.paths"

    @classmethod
    def selected(cls, lines: Sequence[results.Line]) -> list[results.Line]:
        """The newest line of each command."""
        return list({cls.started_by(line): line for line in lines}.values())

    @classmethod
    def started_by(cls, line: results.Line) -> str:
        launcher = ["mpirun", "-n", str(line["ranks"])] if line["ranks"] > 1 else []
        return shlex.join([*launcher, *cls.again.split(), *line["arguments"]])

    def blocks(self) -> Iterator[results.Block]:
        for line in self.lines:
            rows = [[name, *numbers] for name, numbers in zip(line["rows"], line["numbers"], strict=True)]
            heads = ["from\\to", *line["columns"]]
            yield results.Table(heads, "l" + "r" * len(line["columns"]), rows, f"{line['graph']}, length {line['length']}")
            yield results.Remarks([line["arithmetic"], counted(line["products"], "matrix product")])


def _sources() -> Iterator[tuple[type[results.Results], str, str, str]]:
    """What has a section of the page: its results, title, introduction, and the command that records its lines."""
    for name in (*LECTURES.values(), "ladder"):
        module: Any = import_module(f"experiments.lectures.{name}")
        heading, about, *_ = module.__doc__.split("\n\n")
        made = module.Results
        yield made, heading.partition(" python ")[0].rstrip(":"), about, f"{made.again} --json lines.jsonl"
    heading, about = (Paths.__doc__ or "").split("\n\n")
    yield Paths, heading, about, "python -m hybrid.paths ten --length 4 --json lines.jsonl"


def _section(made: results.Results, title: str, about: str) -> Iterator[str]:
    name = made.command
    yield from (*_headed(name, title), f"<p>{_marked(about)}</p>", "<figure>")
    if made.draw:
        yield _drawn(made, name, title)
    for block in made.blocks():
        yield f"<p><b>{_marked(block.title)}</b></p>" if block.title else ""
        yield _table(block) if isinstance(block, results.Table) else _list(block.lines)
    commands = "".join(f"<code>{escape(command)}</code>" for command in made.started())
    yield f"<figcaption>{escape(made.caption())}; again: {commands}</figcaption></figure></section>"


def _marked(text: str) -> str:
    """Escaped, `code` marked."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _headed(name: str, title: str) -> list[str]:
    return [f'<section id="{escape(name)}">', f"<h2>{escape(title)}</h2>"]


def _list(lines: Sequence[str]) -> str:
    return "".join(["<ul>", *(f"<li>{_marked(line)}</li>" for line in lines), "</ul>"])


def _table(table: results.Table) -> str:
    """In a box that scrolls by itself, also by the keyboard."""

    def row(cells: Sequence[str], tag: str) -> str:
        marked = (f'<{tag} class="{side}">{_marked(cell)}</{tag}>' for cell, side in zip(cells, table.sides, strict=True))
        return f"<tr>{''.join(marked)}</tr>"

    head = [f"<thead>{row(table.heads, 'th')}</thead>"] if any(table.heads) else []
    box = f'<div class="wide" role="region" tabindex="0" aria-label="{escape(table.title or "table")}">'
    return "\n".join([box, "<table>", *head, "<tbody>", *(row(cells, "td") for cells in table.rows), "</tbody></table></div>"])


# What is drawn on white follows the page, which may be dark.
_FOLLOWING = {
    "#000000": "currentColor", plots.TEXT: "currentColor", "#ffffff": "var(--ground)", plots.GRID: "var(--line)",
    plots.HERE: "var(--first)", plots.LECTURE: "var(--second)", plots.OTHER: "var(--third)",
}  # fmt: skip


def _drawn(made: results.Results, name: str, title: str) -> str:
    """The picture as an SVG element, without what a page has once; names that are referred to begin with `name`."""
    plots.give_matplotlib_a_folder()
    import matplotlib

    assert made.draw
    with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context({"savefig.transparent": True}):
        path = Path(folder) / "picture.svg"
        made.draw(str(path))
        text = path.read_text(encoding="utf-8")
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' id="[a-z]+_?\d+"', "", text)  # of groups, to which nothing refers
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub("|".join(_FOLLOWING), lambda color: _FOLLOWING[color[0]], text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)


def _run(quick: bool, path: Path) -> list[str]:
    """Run what needs no recorded lines, which appends its own to `path`; what failed."""
    failed = []
    commands = [["-m", "hybrid.lectures", name, *["--quick"] * quick] for name in LECTURES]
    for words in [*commands, *(["-m", "hybrid.paths", *shlex.split(asked)] for asked in PATHS)]:
        name = shlex.join(["python", *words])
        print(name, file=sys.stderr, flush=True)
        # In the file's folder, so that the command recorded in it names no folder of this machine.
        record, nothing = [sys.executable, *words, "--json", path.name], subprocess.DEVNULL
        if code := subprocess.run(record, cwd=path.parent, stdin=nothing, stdout=nothing, check=False).returncode:
            failed.append(f"{name}: exit code {code}, the reason is on standard error")
    return failed


def _make(options: argparse.Namespace) -> int:
    """The exit code. What can be refused is refused before anything is measured."""
    running = options.run or not options.lines
    if not running and (options.quick or options.json):
        raise UsageError("--quick and --json are for scripts that are run: add --run")
    plots.refuse("report.svg")
    refuse_unwritable(options.out)
    for path in (*options.lines, *filter(None, [options.json])):
        refuse_same({path: path, "--out": options.out}, {})
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(options.json or Path(folder) / "lines.jsonl").resolve()
        failed = _run(options.quick, fresh) if running else []
        paths = [*options.lines, *([str(fresh)] if running and fresh.exists() else [])]
        lines = [line for path in paths for line in jsonl.read(path)]
    return _write(options.out, lines, failed, shlex.join(["python", "-m", "hybrid.lectures", "report", *options.words]))


def _write(path: str, lines: Sequence[results.Line], failed: list[str], started: str) -> int:
    """The exit code. HybridError where there is nothing to show: then the file stays as it is."""
    sections: dict[str, tuple[str, list[str]]] = {}
    missing = []
    for source, title, about, adds in _sources():
        own = [line for line in lines if line.get("command") == source.command]
        try:
            if selected := source.selected(own) if own else []:
                sections[source.command] = title, list(_section(source(selected), title, about))
                continue
        except Exception as error:  # whatever strange lines do to a script's functions, the other sections are shown
            failed.append(f"{source.command}: its lines make no section ({one_line(error)})"[:_LONGEST_REASON])
        missing.append(f"`{adds}` adds: {title}")
    for reason in failed:
        print(reason, file=sys.stderr)
    count = len(sections)
    if not sections:
        raise HybridError(f"{path} is not written: no line makes one of its sections")
    for name, said in {"What is not here, and what adds it": missing, "Faults": failed}.items():
        if said:
            sections[f"note-{len(sections)}"] = name, [*_headed(f"note-{len(sections)}", name), _list(said), "</section>"]
    links = "".join(f'<li><a href="#{escape(name)}">{escape(title)}</a></li>' for name, (title, _) in sections.items())
    about = "Each figure with its machine, its date, and the command that gives it again."
    body = [f"<h1>{escape(TITLE)}</h1>", f"<p>{about}</p>", f"<p>This page: <code>{escape(started)}</code></p>"]
    body += [
        f"<nav aria-label='contents'><ol>{links}</ol></nav>",
        *(line for _, section in sections.values() for line in section),
    ]
    html_page.write(path, html_page.document(TITLE, body, _STYLE))
    print(f"{path}: {count} of {count + len(missing)} sections")
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    parser.add_argument("lines", nargs="*", metavar="lines.jsonl", help="recorded lines, the newest last")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page (report.html)")
    parser.add_argument("--run", action="store_true", help="run the lectures' scripts, beside the lines given")
    parser.add_argument("--quick", action="store_true", help="with small sizes")
    parser.add_argument("--json", metavar="FILE", help="append the lines of the scripts that are run")
    return cli.command(parser, _make, arguments)
