"""The sections of a report: which script's lines make which, by that script's own tables and pictures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import bench_hosts
import hosts_picture
import hosts_results
import ladder
import ladder_picture
import ladder_table
import largest
import lecture_2d
import lecture_hochberg
import lecture_pmpp
import lecture_siegel
import lecture_siegel_results
import pascal
import pascal_picture
import report_shapes
from lecture_common import Line, dates_of, last_run, machine_of, processor_of
from report_html import Figure, Section
from report_picture import drawn
from report_table import Block, Remarks, Table

Lines = Sequence[Line]


@dataclass(frozen=True)
class Source:
    """A script, and what is made of its lines. `command`: what adds them."""

    name: str
    title: str
    about: str
    command: str
    figures: Callable[[Lines], Iterator[Figure]]
    not_shown: Callable[[Lines], Iterator[str]] = lambda lines: iter(())

    def section(self, lines: Lines) -> Section:
        return Section(self.name, self.title, self.about, list(self.figures(lines)))


def _source(name: str, script: ModuleType, paragraphs: slice, options: str = "", **more: Any) -> Source:
    """Title and introduction are the script's own."""
    heading, *others = (script.__doc__ or "").split("\n\n")
    title = heading.partition(" python ")[0].rstrip(":")
    command = f"python scripts/{Path(script.__file__ or '').name}{options} --json lines.jsonl"
    return Source(name, title, "\n\n".join(others[paragraphs]), command, **more)


def _commands(lines: Lines) -> list[str]:
    return list(dict.fromkeys(line["command"] for line in lines))


# --- the lectures' scripts


def _lecture(
    name: str,
    script: ModuleType,
    results_of: Callable[[Lines], Any],
    blocks: Callable[[Any], Iterator[Block]],
    draw: Callable[[Any, str], None],
) -> Source:
    def figures(lines: Lines) -> Iterator[Figure]:
        run = last_run(lines)
        if run:
            results = results_of(run)
            picture = drawn(partial(draw, results), name, source.title)
            yield Figure(list(blocks(results)), machine_of(run), dates_of(run), _commands(run), picture)

    def not_shown(lines: Lines) -> Iterator[str]:
        run = last_run(lines)
        for began in dict.fromkeys(line["run"] for line in lines):
            if not run:
                yield f"{name}, run of {began}: it did not come to its end"
            elif began != run[-1]["run"]:
                yield f"{name}, run of {began}: the last one that came to its end is shown"

    source = _source(name, script, slice(0, 1), figures=figures, not_shown=not_shown)
    return source


# --- the benchmarks


def _ladder(lines: Lines) -> Iterator[Figure]:
    results = ladder_table.Results(lines)
    shown = list(results)
    picture = drawn(lambda path: ladder_picture.draw(results, Path(path)), "ladder", "TF/s of each rung beside cuBLAS")
    yield Figure(list(ladder_table.blocks(results)), results.machine(), dates_of(shown), _commands(shown), picture)


def _other_gpus(lines: Lines) -> Iterator[str]:
    for gpu in dict.fromkeys(line["gpu"] for line in lines):
        if gpu != lines[-1]["gpu"]:
            yield f"ladder, lines of {gpu}: those of {lines[-1]['gpu']} came later"


def _hosts(lines: Lines) -> Iterator[Figure]:
    results = hosts_results.Results(lines)
    picture = ""
    if results.sizes(tuple(hosts_picture.DRAWN)):
        picture = drawn(lambda path: hosts_picture.draw(results, Path(path)), "hosts", "time against the number of GPUs")
    dates = results.dates() or dates_of(lines)
    yield Figure(list(hosts_results.blocks(results)), results.machine(), dates, results.commands(), picture)


def _other_machines(lines: Lines) -> Iterator[str]:
    shown = hosts_results.Results(lines).machine()
    for machine in dict.fromkeys(map(hosts_results.machine_of, lines)):
        if machine != hosts_results.machine_of(lines[-1]):
            device, gpu, count = machine
            yield f"hosts, lines of {f'{count} × {gpu}' if gpu else device}: those of {shown} came later"


# --- questions of the lectures


def _started(line: Line, program: str, ranks: int = 1) -> str:
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    return shlex.join([*launcher, "python", *program.split(), *line["arguments"]])


def _pascal(lines: Lines) -> Iterator[Figure]:
    blocks: list[Block] = []
    newest = {(line["dtype"], line["kernel"]): line for line in lines if "size" not in line}
    fields = ("dtype", "fit", "exact", "right", "kernel", "reasons")
    picture = ""
    if newest:
        results = {id(line): pascal.Result(**{key: line[key] for key in fields}) for line in newest.values()}
        blocks += pascal.blocks(list(results.values()))
        last = [results[id(line)] for line in {line["dtype"]: line for line in lines if "size" not in line}.values()]
        about = f"{_pascals_machine(list(newest.values()))}; {dates_of(list(newest.values()))}"
        picture = drawn(lambda path: pascal_picture.draw(last, path, about), "pascal", "the largest N of each type")
    one_size = {(line["dtype"], line["size"]): line for line in lines if "size" in line}
    if one_size:
        verdicts = (
            pascal.about_one_size(*asked, pascal.Wrong(**line["wrong"]) if line["wrong"] else None)
            for asked, line in one_size.items()
        )
        blocks.append(Remarks(list(verdicts), "of one size"))
    shown = [*newest.values(), *one_size.values()]
    commands = dict.fromkeys(_started(line, "scripts/pascal.py") for line in shown)
    yield Figure(blocks, _pascals_machine(shown), dates_of(shown), list(commands), picture)


def _pascals_machine(lines: Lines) -> str:
    """Older lines do not say the GPU, and those of integers have none."""
    gpus = [line["gpu"] for line in lines if report_shapes.name(line.get("gpu"))]
    return machine_of([{**lines[-1], "gpu": gpus[-1]}]) if gpus else processor_of(lines[-1])


def _paths(lines: Lines) -> Iterator[Figure]:
    newest = {_started(line, "-m hybrid.paths", line["ranks"]): line for line in lines}
    for command, line in newest.items():
        rows = [[name, *numbers] for name, numbers in zip(line["rows"], line["numbers"], strict=True)]
        title = f"{line['graph']}, length {line['length']}"
        products = f"{line['products']} {'product' if line['products'] == 1 else 'products'} by the runner"
        table = Table(["from\\to", *line["columns"]], "l" + "r" * len(line["columns"]), rows, title)
        yield Figure([table, Remarks([line["arithmetic"], products])], processor_of(line), dates_of([line]), [command])


SOURCES = (
    _lecture("lecture_pmpp", lecture_pmpp, lecture_pmpp.Results, lecture_pmpp.blocks, lecture_pmpp.draw),
    _lecture("lecture_2d", lecture_2d, lecture_2d.Results, lecture_2d.blocks, lecture_2d.draw),
    _lecture("lecture_hochberg", lecture_hochberg, lecture_hochberg.Results, lecture_hochberg.blocks, lecture_hochberg.draw),
    _lecture(
        "lecture_siegel",
        lecture_siegel,
        lecture_siegel_results.Results,
        lecture_siegel_results.blocks,
        lecture_siegel_results.draw,
    ),
    _lecture("largest", largest, list, largest.blocks, largest.draw),
    _source("pascal", pascal, slice(0, 2), figures=_pascal),
    Source(
        "paths",
        "Paths of a length, counted exactly",
        "How many walks of a length lead from where to where? The entries of the adjacency matrix's power, whole numbers of any "
        "size; of long ones the first and the last digits are shown.",
        "python -m hybrid.paths ten --length 4 --json lines.jsonl",
        _paths,
    ),
    _source("ladder", ladder, slice(0, 1), figures=_ladder, not_shown=_other_gpus),
    _source("hosts", bench_hosts, slice(1, 2), " --gpus 1 2 4 8", figures=_hosts, not_shown=_other_machines),
)
