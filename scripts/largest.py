"""How large may N×N matrices be? python scripts/largest.py [--gpu-memory BYTES]

Question 2 of the matrix multiplication module: N by the memory alone, floor(sqrt(bytes / (3·bytes an element))), beside the
largest N that really runs: in core, where the three matrices are allocated as multShare and multNoShare do; by the runner as
long as it holds all three at once; and by the runner out of core, where it loads parts and makes room for others, --times times
as far or as seven eighths of the host's free memory reach (HYBRID_HOST_MEMORY sets others). Every N is searched from above,
multiplied and checked: integers, so that the check is exact.

On a GPU its free memory counts, or --gpu-memory (HYBRID_GPU_MEMORY) of it; a search in all of a large GPU takes minutes.
Without one 1 MiB of the CPU's memory stands for a GPU's (--quick: 256 KiB): the module's kernels run on the CPU's CUDA runtime,
and the runner copies into buffers of that size as into a GPU's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import lecture_picture
from largest_runs import RunnerAlone, largest_in_core, theoretical
from lecture_common import Line, caption, command, lines_of, of_gpu, on, parser_for, present, readable
from lecture_places import Place, place_for
from lecture_timing import kernel_of
from report_table import Table, printed

from hybrid.core.problem import ITEM_SIZES
from hybrid.core.settings import Settings, parse_bytes
from hybrid.core.text import readable as readable_bytes
from hybrid.errors import DoesNotFit, UsageError
from hybrid.kernels.catalogue import BOTH, fastest, refusal
from hybrid.selection.inventory import kernel_asked_for

NAME = "largest"
PRETENDED_MEMORY, QUICK_MEMORY = 1 << 20, 256 << 10
MOST_EMULATED = 1024  # rows and columns: the CPU's CUDA runtime takes seconds for them, and hours for ten times as many
TIMES = 4.0
WAYS = {  # part of a line: what it is called
    "theoretical": "by the memory alone",
    "in core": "three allocations, as in the module",
    "held": "runner, all held at once",
    "out of core": "runner, out of core",
}


def measured(place: Place, dtypes: Sequence[str], kernels: Sequence[str] | None, memory: int, times: float) -> Iterator[Line]:
    runner = RunnerAlone(place.device, memory)
    for dtype in dtypes:
        about = {**on(place), "dtype": dtype, "memory": memory}
        most = theoretical(memory, dtype)
        yield {**about, "part": "theoretical", "n": most}
        for name in kernels or _kernels(place, dtype, most):
            n, seconds = largest_in_core(place, kernel_of(name), dtype, most)
            yield {**about, "part": "in core", "n": n, "kernel": name, "seconds": seconds}
        yield from ({**about, **line} for line in runner.lines(dtype, most, times))


def _kernels(place: Place, dtype: str, n: int) -> tuple[str, ...]:
    """With and without shared memory; on a GPU the fastest alone: the others take minutes there."""
    return (fastest("cuda", dtype, n, place.capability).kernel.name,) if place.device == "cuda" else ("naive", "tiled")


# --- what it says


def table(lines: Sequence[Line]) -> Iterator[str]:
    yield caption(lines)
    yield from printed(blocks(lines))


def blocks(lines: Sequence[Line]) -> Iterator[Table]:
    for dtype in dict.fromkeys(line["dtype"] for line in lines):
        ours = [line for line in lines if line["dtype"] == dtype]
        memory, item = ours[-1]["memory"], ITEM_SIZES[dtype]
        whose = "of the GPU" if of_gpu(lines) else "of the CPU, in place of a GPU's"
        most = next(line["n"] for line in ours if line["part"] == "theoretical")
        rows = [[WAYS[line["part"]], str(line["n"]), _about(line, most, memory, item)] for line in ours]
        yield Table(["way", "largest N", "how"], "lrl", rows, f"{dtype}, {readable_bytes(memory)} {whose}")


def _about(line: Line, most: int, memory: int, item: int) -> str:
    if line["part"] == "theoretical":
        return f"floor(sqrt({memory:,} / (3 · {item})))"
    seconds = f" in {readable(line['seconds'])}" if line["device"] == "cuda" else ""
    right = f"{line['kernel']}: multiplied{seconds} and right"
    far = f"{line['n'] / most:.3g} × {most}" if line["part"] == "out of core" else f"{most - line['n']} short"
    return f"{right}, {far}" + (f"; {line['ended_by']}" if line.get("ended_by") else "")


def draw(lines: Sequence[Line], path: str) -> None:
    """N of each way, a panel for each type."""
    dtypes = list(dict.fromkeys(line["dtype"] for line in lines))
    memory = readable_bytes(lines[-1]["memory"])
    title = f"The largest N×N matrices in {memory}" + ("" if of_gpu(lines) else " (of the CPU, in place of a GPU's)")
    with lecture_picture.figure(path, (9.5, 1.0 + 1.9 * len(dtypes)), title, caption(lines)) as figure:
        panels = figure.subplots(len(dtypes), 1, squeeze=False, sharex=True)[:, 0]
        for dtype, panel in zip(dtypes, panels, strict=True):
            by_way = {line["part"]: line["n"] for line in lines if line["dtype"] == dtype}
            parts = [part for part in WAYS if part in by_way]
            lecture_picture.plain(panel, dtype)
            colors = [lecture_picture.GREY if part == "theoretical" else lecture_picture.HERE for part in parts]
            drawn = panel.barh([WAYS[part] for part in parts], [by_way[part] for part in parts], color=colors, height=0.65)
            panel.bar_label(drawn, [f"{by_way[part]:,}" for part in parts], fontsize=9, padding=4)
            panel.invert_yaxis()
            panel.margins(x=0.12)
            panel.grid(axis="y", visible=False)
        panels[-1].set_xlabel("N, rows and columns of each matrix")


# --- the command


def work(options: argparse.Namespace) -> int:
    return present(lines_of(options, NAME, _measured(options)), options, table, draw)


def _measured(options: argparse.Namespace) -> Iterator[Line]:
    asked_for = parse_bytes(options.gpu_memory) if options.gpu_memory else Settings.gather({}).gpu_memory
    place = place_for(options.device, asked_for)
    if place.device == "emulate" and not asked_for:
        place = place_for("emulate", QUICK_MEMORY if options.quick else PRETENDED_MEMORY)
    dtypes = [options.dtype] if options.dtype else ["float32"] if options.quick else list(BOTH)
    if not theoretical(place.memory(), "float64"):
        raise DoesNotFit(f"{place.memory()} bytes hold no three numbers: a larger --gpu-memory")
    if place.device == "emulate" and theoretical(place.memory(), dtypes[0]) > MOST_EMULATED:
        raise UsageError(
            f"{readable_bytes(place.memory())} hold more than the CPU's CUDA runtime multiplies in a short time: "
            f"--gpu-memory up to {readable_bytes(3 * ITEM_SIZES[dtypes[0]] * MOST_EMULATED**2)} without a GPU"
        )
    for name in options.kernels or ():
        kernel_asked_for(Settings(device=place.device, kernel=name))
        for dtype in dtypes:
            if refused := refusal(kernel_of(name), dtype, columns=2, capability=place.capability):
                raise UsageError(refused)
    yield from measured(place, dtypes, options.kernels, place.memory(), options.times)


def at_least_one_time(text: str) -> float:
    try:
        times = float(text)
    except ValueError:
        times = 0.0
    if not times >= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 up")
    return times


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    parser.add_argument("--dtype", choices=BOTH, help="only this one (both; --quick: float32)")
    parser.add_argument("--gpu-memory", metavar="BYTES", help="of the GPU, or of the CPU in its place (free; 1 MiB)")
    parser.add_argument("--kernels", nargs="+", metavar="NAME", help="for in core (the fastest; without a GPU naive and tiled)")
    parser.add_argument(
        "--times", type=at_least_one_time, default=TIMES, metavar="T", help="out of core, up to T times as large (4)"
    )
    return command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
