"""What scripts/lecture_siegel.py says of its lines: the lecture's numbers beside this machine's, as a table and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import lecture_picture
from ladder_table import form_of, loads_of_elements
from lecture_common import Line, caption, of_gpu, readable
from lecture_names import ORDERS, SIEGEL_PROGRAMS
from lecture_timing import kernel_of
from report_table import Block, Remarks, Table, printed

from hybrid.kernels.catalogue import EMULATED_CAPABILITY

DTYPE = "float64"
N = 8000  # of the lecture
LECTURE_SECONDS = {"matmul1": 13.8, "matmul2": 4.8}  # on a K40c
LECTURE_SEQ_LEAST = 3600.0
COUNTED = (100, 60, 90)  # n, l, m: of no tile a multiple


class Results:
    """The last line of each measurement, and what follows from them."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines, self.speeds = lines, of_gpu(lines)
        self.seq = {(line["kernel"], line["n"]): line["seconds"]["median"] for line in lines if line["part"] == "seq"}
        self.programs = {line["program"]: line for line in lines if line["part"] == "kernel"}
        self.loads = {line["program"]: line for line in lines if line["part"] == "loads"}
        self.several = {(line["way"], line["devices"]): line for line in lines if line["part"] == "several"}

    def extrapolated(self, kernel: str) -> tuple[float, int] | None:
        """Seconds at 8000, by n³ from the largest size measured; that size. None where nothing was."""
        sizes = [n for name, n in self.seq if name == kernel]
        return (self.seq[kernel, max(sizes)] * (N / max(sizes)) ** 3, max(sizes)) if sizes else None


def formulas(program: str) -> tuple[str, str]:
    """Reads of each element of a and of b."""
    if SIEGEL_PROGRAMS[program] == "naive":
        return "m", "n"
    rows, columns = form_of(kernel_of(SIEGEL_PROGRAMS[program]), DTYPE, EMULATED_CAPABILITY).tile
    return f"ceil(m / {columns})", f"ceil(n / {rows})"


def reads(program: str, shape: tuple[int, int, int] = (N, N, N)) -> tuple[int, int]:
    """The same in numbers."""
    kernel = kernel_of(SIEGEL_PROGRAMS[program])
    return loads_of_elements(kernel.name, form_of(kernel, DTYPE, EMULATED_CAPABILITY).tile, shape)


def table(results: Results) -> Iterator[str]:
    yield caption(results.lines)
    yield from printed(blocks(results))


def blocks(results: Results) -> Iterator[Block]:
    title = f"{N}×{N}, {DTYPE}: {N**3:,} multiplications"
    yield Table(["program", "K40c (lecture)", "here"], "lrl", list(_time_rows(results)), title)
    yield _memory_table(results)
    yield _about_several(results)


def _time_rows(results: Results) -> Iterator[list[str]]:
    for kernel, order in ORDERS.items():
        yield [f"seq, {order}", "> 1 h" if kernel == "loops" else "", _seq_here(results, kernel)]
    for program, line in results.programs.items():
        n, seconds = line["n"], LECTURE_SECONDS[program]
        size = "" if n == N else f" at {n}"
        here = f"right at {n}, on the CPU's CUDA runtime"
        if results.speeds:
            here = f"{readable(line['seconds']['median'])}{size}, {readable(line['whole']['median'])} with allocation and copies"
        yield [program, f"{seconds:.1f} s", here]
    if results.speeds and len(results.programs) == len(SIEGEL_PROGRAMS):
        one, two = (results.programs[program]["seconds"]["median"] for program in SIEGEL_PROGRAMS)
        ratio = LECTURE_SECONDS["matmul1"] / LECTURE_SECONDS["matmul2"]
        yield ["ratio", f"{ratio:.1f}", f"{one / two:.2f}"]


def _seq_here(results: Results, kernel: str) -> str:
    found = results.extrapolated(kernel)
    if found is None:
        return "not measured"
    seconds, size = found
    return f"{readable(seconds)}, extrapolated by n³ from {readable(results.seq[kernel, size])} at {size}; not measured"


def _memory_table(results: Results) -> Table:
    rows = []
    for program in SIEGEL_PROGRAMS:
        a, b = formulas(program)
        counted = results.loads.get(program)
        least_and_most = [{counted[matrix][0], counted[matrix][1]} for matrix in "ab"] if counted else []
        shown_counts = ", ".join("–".join(f"{count:g}" for count in sorted(counts)) for counts in least_and_most)
        both = ", ".join(map(str, dict.fromkeys(reads(program))))
        rows.append([program, a, b, both, shown_counts or "not counted"])
    heads = ["program", "of a", "of b", f"at {N}", f"counted at n, l, m = {', '.join(map(str, COUNTED))}"]
    return Table(heads, "lrrrl", rows, "how often is each element read from global memory?")


def _about_several(results: Results) -> Remarks:
    n = next(iter(results.several.values()))["n"]
    return Remarks(list(_lines_of_several(results)), f"several devices, matmul2 at {n}")


def _lines_of_several(results: Results) -> Iterator[str]:
    for (way, devices), line in results.several.items():
        what = f"{devices} {'device' if devices == 1 else 'devices'}, {'a process' if way == 'one process' else 'a rank'} "
        what += "for all" if way == "one process" else "each"
        if not results.speeds:
            yield f"{what}: right, pretended by the CPU"
        elif way == "ranks":
            yield f"{what}: multiply {readable(line['seconds']['median'])}, host to host {readable(line['total']['median'])}"
        else:
            yield f"{what}: {readable(line['seconds']['median'])} from the first launch to the last end"


def draw(results: Results, path: str) -> None:
    """Seconds at 8000 beside the lecture's; reads of each element, and on a GPU the time against the number of devices."""
    count = 3 if results.speeds else 2
    title = f"Three programs at {N}×{N}, {DTYPE}"
    with lecture_picture.figure(path, (1.5 + 4 * count, 4.0), title, caption(results.lines)) as figure:
        panels = figure.subplots(1, count, width_ratios=[1.6, 1, 1][:count])
        _draw_seconds(panels[0], results)
        _draw_reads(panels[1])
        if results.speeds:
            _draw_several(panels[2], results)


def _draw_seconds(panel: Any, results: Results) -> None:
    rows = [("seq, lecture", LECTURE_SEQ_LEAST, "> 1 h", lecture_picture.LECTURE)]
    for kernel, order in ORDERS.items():
        if found := results.extrapolated(kernel):
            text = f"{readable(found[0])}, extrapolated from {found[1]}"
            rows.append((f"seq {order}, here", found[0], text, lecture_picture.GREY))
    for program, seconds in LECTURE_SECONDS.items():
        rows.append((f"{program}, lecture", seconds, f"{seconds} s", lecture_picture.LECTURE))
        line = results.programs[program]
        if results.speeds:
            size = "" if line["n"] == N else f" at {line['n']}"
            here = line["seconds"]["median"]
            rows.append((f"{program}, here", here, readable(here) + size, lecture_picture.HERE))
    names, values, texts, colors = zip(*rows, strict=True)
    lecture_picture.plain(panel, "time" + ("" if results.speeds else " (no GPU here)"))
    lecture_picture.bars(panel, names, values, texts, colors)
    panel.set_xlim(right=max(values) * 1000)  # room for the longest text
    panel.set_xlabel("seconds")


def _draw_reads(panel: Any) -> None:
    lecture_picture.plain(panel, "reads of each element")
    counts = [reads(program) for program in SIEGEL_PROGRAMS]
    for place, (matrix, color) in enumerate((("a", lecture_picture.HERE), ("b", lecture_picture.OTHER))):
        across = [group + 0.36 * place - 0.18 for group in range(len(counts))]
        drawn = panel.bar(across, [count[place] for count in counts], 0.34, color=color, label=f"of {matrix}")
        panel.bar_label(drawn, fontsize=8, padding=2)
    panel.set_xticks(range(len(SIEGEL_PROGRAMS)), list(SIEGEL_PROGRAMS))
    panel.set_ylabel("reads from global memory")
    panel.margins(y=0.1)
    panel.legend(frameon=False, fontsize=8)


def _draw_several(panel: Any, results: Results) -> None:
    n = next(iter(results.several.values()))["n"]
    lecture_picture.plain(panel, f"matmul2 at {n} by number of GPUs")
    for way, what, color, size in (  # of two points at one place both are seen
        ("one process", "one process", lecture_picture.HERE, 7),
        ("ranks", "ranks, multiply", lecture_picture.OTHER, 4),
    ):
        points = [(devices, line["seconds"]["median"]) for (named, devices), line in results.several.items() if named == way]
        panel.plot(*zip(*points, strict=True), marker="o", markersize=size, color=color, label=what)
    panel.set_xticks(sorted({devices for _, devices in results.several}))
    panel.set_xlabel("GPUs")
    panel.set_ylabel("seconds")
    panel.set_ylim(0, 1.15 * max(line["seconds"]["median"] for line in results.several.values()))
    panel.legend(frameon=False, fontsize=8, loc="lower left")
