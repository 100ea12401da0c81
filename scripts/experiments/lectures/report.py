# SPDX-License-Identifier: MIT
"""All figures of the lectures on one HTML page: python -m hybrid.lectures report [lines.jsonl ...] [--out report.html]

Takes the lines that the lectures, scripts/ladder.py, scripts/bench_hosts.py and python -m hybrid.paths have recorded with --json,
and makes a page that needs no other file and no network: tables, pictures,
and with each the machine, the date and the command that gives it again. Without lines, or with --run, those that need no
recorded lines are run first; with --quick that takes a minute or so without a GPU.

What is missing is named on the page with the command that adds it, as are sections whose lines cannot be used: then the exit code
is 1. Where no line can be used no page is written, and one that is there stays as it is.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

from experiments.common import cli, hosts_results, plots, records, results, tables
from experiments.lectures import hochberg, ladder, largest, pascal, pmpp, siegel, two_dimensions
from hybrid.core.text import counted
from hybrid.errors import HybridError, UsageError, one_line
from hybrid.reporting import html_page, jsonl
from hybrid.runs.files import refuse_same, refuse_unwritable

TITLE = "The lectures, redrawn"
LECTURES = ("pmpp", "2d", "hochberg", "siegel", "largest", "pascal")  # that are run, with --quick
PATHS = ("ten --length 4", "ten --length 4 --from C --to J", "five --length 2000 --from A --to B")
_LONGEST_REASON = 300
_STYLE = """\
main { max-width: 78rem; }
section { border-top: 1px solid var(--line); margin-top: 2.2rem; }
figure { margin: 1.2rem 0 0; }
pre { white-space: pre-wrap; font: inherit; padding-left: 1.2rem; }
table { width: auto; overflow-wrap: normal; }
th, td { white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
.r { text-align: right; }
.wide { overflow-x: auto; margin: 0.3rem 0 1.2rem; }
svg { display: block; width: 100%; min-width: var(--width); max-width: calc(var(--width) * 1.4); height: auto; }
.below { display: none; }
.below svg { min-width: 0; }
@media (max-width: 44rem) { .beside { display: none; } .below { display: block; } }
figcaption { color: var(--soft); font-size: 0.85rem; }
figcaption code { display: block; }
"""


class Paths(results.Results):
    """Paths of a length, counted exactly: python -m hybrid.paths, of whose recorded lines a report shows the newest.

    How many walks of a length lead from where to where? The entries of the adjacency matrix's power, whole numbers of any size;
    of long ones the first and the last digits are shown.
    """

    command = "paths"

    @classmethod
    def each(cls, lines: Sequence[records.Line]) -> Iterator[results.Results]:
        """Of each command the newest line: a figure of its own."""
        yield from (cls([line]) for line in {cls.started_by(line): line for line in lines}.values())

    @classmethod
    def started_by(cls, line: records.Line) -> str:
        launcher = ["mpirun", "-n", str(line["ranks"])] if line["ranks"] > 1 else []
        return shlex.join([*launcher, "python", "-m", "hybrid.paths", *line["arguments"]])

    def has_picture(self) -> bool:
        return False

    def blocks(self) -> Iterator[tables.Block]:
        (line,) = self.lines
        rows = [[name, *numbers] for name, numbers in zip(line["rows"], line["numbers"], strict=True)]
        heads = ["from\\to", *line["columns"]]
        yield tables.Table(heads, "l" + "r" * len(line["columns"]), rows, f"{line['graph']}, length {line['length']}")
        yield tables.Remarks([line["arithmetic"], f"{counted(line['products'], 'matrix product')}"])


class Source:
    """An experiment of which the page has a section. Title and introduction are those of its help; `adds` is the command that
    records its lines."""

    def __init__(self, module: ModuleType | type[Paths], adds: str = "") -> None:
        heading, about, *_ = re.sub(r"^    ", "", module.__doc__ or "", flags=re.MULTILINE).split("\n\n")
        self.results: type[results.Results] = module if isinstance(module, type) else module.Results
        self.title, self.about, self.name = heading.partition(" python ")[0].rstrip(":"), about, self.results.command
        self.adds = adds or f"{self.results.started_with()}{self.results.more_arguments} --json lines.jsonl"

    def section(self, lines: Sequence[records.Line]) -> list[str]:
        """Its HTML; empty where there is nothing to show."""
        figures = [line for made in self.results.each(lines) for line in self._figure(made)]
        about = [f"<pre>{_marked(text)}</pre>" if text[:1] == " " else f"<p>{_marked(text)}</p>" for text in _parts(self.about)]
        return [*_section(self.name, self.title), *about, *figures, "</section>"] if figures else []

    def _figure(self, made: results.Results) -> Iterator[str]:
        yield "<figure>"
        if made.has_picture():
            yield f'<div class="beside">{_wide(_drawn(made.draw, self.name, self.title), self.title)}</div>'
            with plots.below_each_other():
                yield f'<div class="below">{_drawn(made.draw, self.name + "-narrow", self.title)}</div>'
        for block in made.blocks():
            yield f"<p><b>{_marked(block.title)}</b></p>" if block.title else ""
            yield _wide(_table(block), block.title or "table") if isinstance(block, tables.Table) else _list(block.lines)
        commands = "".join(f"<code>{escape(command)}</code>" for command in made.started())
        yield f"<figcaption>{escape(f'{made.machine()}; {made.dates()}')}; again: {commands}</figcaption></figure>"


SOURCES = (
    *map(Source, (pmpp, two_dimensions, hochberg, siegel, largest, pascal)),
    Source(Paths, "python -m hybrid.paths ten --length 4 --json lines.jsonl"),
    *map(Source, (ladder, hosts_results)),
)


def _parts(text: str) -> list[str]:
    """Lines that are indented, and those that are not."""
    return [part.strip("\n") for part in re.findall(r"(?:^ .*\n?)+|(?:^[^ ].*\n?)+", text, re.MULTILINE)]


def _marked(text: str) -> str:
    """Escaped, `code` marked."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _section(name: str, title: str) -> list[str]:
    return [f'<section id="{escape(name)}">', f"<h2>{escape(title)}</h2>"]


def _list(lines: Sequence[str]) -> str:
    return "".join(["<ul>", *(f"<li>{_marked(line)}</li>" for line in lines), "</ul>"])


def _wide(content: str, label: str) -> str:
    """In a box that scrolls by itself, also by the keyboard."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escape(label)}">\n{content}\n</div>'


def _table(table: tables.Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        marked = (f'<{tag} class="{side}">{_marked(cell)}</{tag}>' for cell, side in zip(cells, table.sides, strict=True))
        return f"<tr>{''.join(marked)}</tr>"

    head = [f"<thead>{row(table.heads, 'th')}</thead>"] if any(table.heads) else []
    return "\n".join(["<table>", *head, "<tbody>", *(row(cells, "td") for cells in table.rows), "</tbody></table>"])


_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# What is drawn on white follows the page, which may be dark.
_FOLLOWING = {
    "#000000": "currentColor", plots.TEXT: "currentColor", "#ffffff": "var(--ground)", plots.GRID: "var(--line)",
    plots.HERE: "var(--first)", plots.LECTURE: "var(--second)", plots.OTHER: "var(--third)",
}  # fmt: skip


def _drawn(draw: Callable[[str], None], name: str, title: str) -> str:
    """The SVG element of a picture that `draw` writes to a path, without what a page has once; names inside of it begin with
    `name`."""
    plots.give_matplotlib_a_folder()
    import matplotlib

    with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context({"savefig.transparent": True}):
        path = Path(folder) / "picture.svg"
        draw(str(path))
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314 (what we have just drawn)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")]:
            parent.remove(child)
        for key, value in parent.attrib.items():
            if key == "id":
                value = f"{name}-{value}"
            if key in ("style", "fill", "stroke"):
                value = re.sub("|".join(_FOLLOWING), lambda color: _FOLLOWING[color[0]], value)
            if key in ("style", "clip-path", f"{{{_XLINK}}}href"):
                value = re.sub(r"(url\(#|^#)", rf"\g<1>{name}-", value)
            parent.set(key, value)
    for key in ("width", "height"):
        root.attrib.pop(key)
    width = float(root.attrib["viewBox"].split()[2])
    root.attrib |= {"role": "img", "aria-label": title, "style": f"--width: {width:g}px"}
    return ElementTree.tostring(root, encoding="unicode")


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
    plots.refuse_without_matplotlib()
    refuse_unwritable(options.out)
    for path in (*options.lines, *filter(None, [options.json])):
        refuse_same({path: path, "--out": options.out}, {})
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(options.json or Path(folder) / "lines.jsonl").resolve()
        failed = _run(options.quick, fresh) if running else []
        paths = [*options.lines, *([str(fresh)] if running and fresh.exists() else [])]
        lines = [line for path in paths for line in jsonl.read(path)]
    return _write(options.out, lines, failed, shlex.join(["python", "-m", "hybrid.lectures", "report", *options.words]))


def _write(path: str, lines: Sequence[records.Line], failed: list[str], started: str) -> int:
    """The exit code. HybridError where there is nothing to show: then the file stays as it is."""
    sections, missing = {}, []
    for source in SOURCES:
        own = [line for line in lines if line.get("command") == source.name]
        section = []
        try:
            section = source.section(own) if own else []
        except Exception as error:  # whatever strange lines do to a script's functions, the other sections are shown
            failed.append(f"{source.name}: its lines make no section ({one_line(error)})"[:_LONGEST_REASON])
        if section:
            sections[source.name] = source.title, section
        else:
            missing.append(f"`{source.adds}` adds: {source.title}")
    for reason in failed:
        print(reason, file=sys.stderr)
    if not sections:
        raise HybridError(f"{path} is not written: no line makes one of its {len(SOURCES)} sections")
    notes = {"What is not here, and what adds it": missing, "Faults": failed}
    for number, (title, said) in enumerate(((title, said) for title, said in notes.items() if said), 1):
        sections[f"note-{number}"] = title, [*_section(f"note-{number}", title), _list(said), "</section>"]
    links = "".join(f'<li><a href="#{escape(name)}">{escape(title)}</a></li>' for name, (title, _) in sections.items())
    about = "Each figure with its machine, its date, and the command that gives it again."
    body = [f"<h1>{escape(TITLE)}</h1>", f"<p>{about}</p>", f"<p>This page: <code>{escape(started)}</code></p>"]
    body += [
        f"<nav aria-label='contents'><ol>{links}</ol></nav>",
        *(line for _, section in sections.values() for line in section),
    ]
    html_page.write(path, html_page.document(TITLE, body, _STYLE))
    print(f"{path}: {len(SOURCES) - len(missing)} of {len(SOURCES)} sections")
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    parser.add_argument("lines", nargs="*", metavar="lines.jsonl", help="recorded lines, the newest last")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page (report.html)")
    parser.add_argument("--run", action="store_true", help="run the lectures' scripts, beside the lines given")
    parser.add_argument("--quick", action="store_true", help="with small sizes")
    parser.add_argument("--json", metavar="FILE", help="append the lines of the scripts that are run")
    return cli.command(parser, _make, arguments)
