"""What the lectures' scripts share: their options, and results as lines."""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TypeVar

import lecture_picture
from lecture_names import END, Line
from lecture_places import Place
from report_shapes import SHAPES, fault
from tqdm import tqdm

from hybrid.core import text
from hybrid.errors import DoesNotFit, HybridError, UsageError, one_line
from hybrid.host import files, memory
from hybrid.ranks.launcher import launched, rank_by_launcher
from hybrid.reporting import jsonl

Item = TypeVar("Item")
Results = TypeVar("Results")


# --- options


def parser_for(description: str | None) -> argparse.ArgumentParser:
    """With the options of all these scripts."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--device", choices=("auto", "cuda", "emulate"), default="auto", help="emulate: the GPU's kernels on the CPU (auto)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: under a minute without a GPU")
    parser.add_argument("--picture", metavar="FILE", help="draw the results, as .png or .svg")
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument("--json", metavar="FILE", help="append a line for each result")
    lines.add_argument("--from", metavar="FILE", dest="source", help="take these lines, measure nothing")
    return parser


def at_least_1(text: str) -> int:
    """An option's type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 up")
    return int(text)


def command(parser: argparse.ArgumentParser, work: Callable[[argparse.Namespace], int], arguments: Sequence[str] | None) -> int:
    """The exit code. What can be refused is refused before anything is measured."""
    options = parser.parse_args(arguments)
    options.words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _refuse_ranks()
        if options.json:
            files.refuse_unwritable(options.json)
        if options.picture:
            lecture_picture.refuse(options.picture)
        return work(options)
    except (HybridError, OSError, KeyboardInterrupt) as error:
        said, code = one_line(error), getattr(error, "exit_code", 1)
    except (LookupError, RuntimeError) as missing:  # lines of a run are looked for one by one
        if not options.source:
            raise
        said, code = f"{options.source} lacks lines that a whole run has ({one_line(missing)})", UsageError.exit_code
    if rank_by_launcher() == 0:
        print(f"{parser.prog}: {said}", file=sys.stderr)
    return code


def _refuse_ranks() -> None:
    launch = launched()
    if launch is not None and launch.size > 1:
        raise UsageError(f"{launch.name} started this {launch.size} times, and each would do all of it: start it alone")


def refuse_too_large(n: int, l: int, m: int, item: int = 4) -> None:
    """DoesNotFit where the host cannot hold its own copies of the matrices."""
    needed, free = item * (n * l + l * m + n * m), memory.available_host_bytes()
    if needed > free:
        raise DoesNotFit(f"A, B and C take {text.readable(needed)} of the host's memory, which has {text.readable(free)}")


def present(
    results: Results,
    options: argparse.Namespace,
    table: Callable[[Results], Iterable[object]],
    draw: Callable[[Results, str], None],
) -> int:
    """Print the table, and draw the picture where one is asked for. The exit code."""
    print(*table(results), sep="\n")
    if options.picture:
        draw(results, options.picture)
    return 0


# --- lines


def lines_of(options: argparse.Namespace, script: str, measured: Iterable[Line]) -> list[Line]:
    """The lines of --from; else what is measured, each line recorded as it comes, and last a line that says it is all."""
    if options.source:
        return recorded(options.source, script)
    started = shlex.join(["python", f"scripts/{script}.py", *options.words])
    about = {"script": script, "run": _now("microseconds"), "command": started}

    def keep(line: Line) -> Line:
        whole = {**about, "date": _now("seconds"), "machine": jsonl.machine(), **line}
        if options.json:
            jsonl.write(whole, options.json)
        return whole

    lines = [keep(line) for line in measured]
    keep({"part": END})
    return lines


def recorded(path: str, script: str) -> list[Line]:
    """The last run of this script in a file that came to its end. UsageError when there is none, and for lines not its own."""
    lines = last_run([line for line in jsonl.read(path) if line.get("script") == script])
    if not lines:
        raise UsageError(f"{path} has no run of scripts/{script}.py that came to its end")
    for line in lines if script in SHAPES else []:
        if reason := fault(script, line):
            raise UsageError(f"{path}, a line of {script}: {reason}")
    return lines


def last_run(lines: Sequence[Line]) -> list[Line]:
    """Of one script's lines those of the last run that came to its end; empty where none did."""
    ended = [line.get("run") for line in lines if line.get("part") == END]
    return [line for line in lines if ended and line.get("run") == ended[-1] and line.get("part") != END]


def _now(precision: str) -> str:
    return datetime.now(timezone.utc).isoformat(timespec=precision)


def on(place: Place) -> Line:
    """What every line of a run says of the device that the run is about."""
    return {"device": place.device, "gpu": place.name if place.device == "cuda" else None}


def of_gpu(lines: Sequence[Line]) -> bool:
    return lines[-1]["device"] == "cuda"


def machine_of(lines: Sequence[Line]) -> str:
    """The processor too: some times are its own, and those of whole programs depend on it."""
    last = lines[-1]
    return f"{last['gpu']}, {processor_of(last)}" if last["gpu"] else f"{processor_of(last)}, no GPU"


def processor_of(line: Line) -> str:
    return f"{line['machine']['processor']}, {line['machine']['cores']} cores"


def caption(lines: Sequence[Line]) -> str:
    """Machine and dates."""
    return f"{machine_of(lines)}; {dates_of(lines)}"


def dates_of(lines: Sequence[Line]) -> str:
    return ", ".join(dict.fromkeys(line["date"][:10] for line in lines))


def spread(times: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(times), "min": min(times), "max": max(times)}


def shown(items: Sequence[Item], title: str) -> Iterator[Item]:
    """With a bar on a terminal."""
    return iter(tqdm(items, desc=title, leave=False, delay=1, disable=not sys.stderr.isatty()))


def number(value: float) -> str:
    """40,505 or 24.34."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def readable(seconds: float) -> str:
    """1.234 ms, 12.34 s, 1.5 h."""
    for least, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if seconds >= least:
            return f"{seconds / least:.4g} {unit}"
    return f"{seconds * 1e6:.4g} µs"
