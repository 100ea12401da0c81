# SPDX-License-Identifier: MIT
"""What `hybrid.lectures siegel` says of its lines: the lecture's numbers beside this machine's, as a table and a picture."""

from collections.abc import Iterator, Sequence
from typing import Any

from experiments.common import plots, records, results, tables, timing, wording
from experiments.lectures.loads import form_of, loads_of_elements
from hybrid.core.text import counted
from hybrid.kernels.catalogue import EMULATED_CAPABILITY

PROGRAMS = {"matmul1": "naive", "matmul2": "tiled"}  # the kernel of each
ORDERS = {"loops": "i j k", "loops_ikj": "i k j"}  # of the sequential program's loops, by kernel
DTYPE = "float64"
N = 8000  # of the lecture
LECTURE_SECONDS = {"matmul1": 13.8, "matmul2": 4.8}  # on a K40c
LECTURE_SEQ_LEAST = 3600.0
LEAST_EXTRAPOLATED = 500  # smaller matrices lie in caches, and times of theirs say nothing of 8000
COUNTED = (100, 60, 90)  # n, l, m: of no tile a multiple


def formulas(program: str) -> tuple[str, str]:
    """Reads of each element of a and of b."""
    if PROGRAMS[program] == "naive":
        return "m", "n"
    rows, columns = form_of(timing.kernel_of(PROGRAMS[program]), DTYPE, EMULATED_CAPABILITY).tile
    return f"ceil(m / {columns})", f"ceil(n / {rows})"


def reads(program: str, shape: tuple[int, int, int] = (N, N, N)) -> tuple[int, int]:
    """The same in numbers."""
    kernel = timing.kernel_of(PROGRAMS[program])
    return loads_of_elements(kernel.name, form_of(kernel, DTYPE, EMULATED_CAPABILITY).tile, shape)


class Results(results.Results):
    """The last line of each measurement, and what follows from them."""

    command, again = "lecture_siegel", "python -m hybrid.lectures siegel"

    def __init__(self, lines: Sequence[records.Line]) -> None:
        super().__init__(lines)
        self.seq = {(line["kernel"], line["n"]): line["seconds"]["median"] for line in lines if line["part"] == "seq"}
        self.programs = {line["program"]: line for line in lines if line["part"] == "kernel"}
        self.loads = {line["program"]: line for line in lines if line["part"] == "loads"}
        self.several = {(line["way"], line["devices"]): line for line in lines if line["part"] == "several"}

    def extrapolated(self, kernel: str) -> tuple[float, int] | None:
        """Seconds at 8000, by n³ from the largest size measured; that size. None where none was measured that tells of 8000."""
        sizes = [n for name, n in self.seq if name == kernel and n >= LEAST_EXTRAPOLATED]
        return (self.seq[kernel, max(sizes)] * (N / max(sizes)) ** 3, max(sizes)) if sizes else None

    def blocks(self) -> Iterator[tables.Block]:
        title = f"{N}×{N}, {DTYPE}: {N**3:,} multiplications"
        yield tables.Table(["program", "K40c (lecture)", "here"], "lrl", list(self._time_rows()), title)
        yield self._memory_table()
        n = next(iter(self.several.values()))["n"]
        yield tables.Remarks(list(self._lines_of_several()), f"several devices, matmul2 at {n}")

    def _time_rows(self) -> Iterator[list[str]]:
        for kernel, order in ORDERS.items():
            yield [f"seq, {order}", "> 1 h" if kernel == "loops" else "", self._seq_here(kernel)]
        for program, line in self.programs.items():
            n, seconds = line["n"], LECTURE_SECONDS[program]
            size = "" if n == N else f" at {n}"
            here = f"right at {n}, on the CPU's CUDA runtime"
            if self.of_gpu:
                here = f"{_median(line)}{size}, {_median(line, 'whole')} with allocation and copies"
            yield [program, f"{seconds:.1f} s", here]
        if self.of_gpu and len(self.programs) == len(PROGRAMS):
            one, two = (self.programs[program]["seconds"]["median"] for program in PROGRAMS)
            ratio = LECTURE_SECONDS["matmul1"] / LECTURE_SECONDS["matmul2"]
            yield ["ratio", f"{ratio:.1f}", f"{one / two:.2f}"]

    def _seq_here(self, kernel: str) -> str:
        found = self.extrapolated(kernel)
        if found is None:
            sizes = [n for name, n in self.seq if name == kernel]
            if not sizes:
                return "not measured"
            return f"{wording.duration(self.seq[kernel, max(sizes)])} at {max(sizes)}, which says nothing of {N}"
        seconds, size = found
        measured = wording.duration(self.seq[kernel, size])
        return f"{wording.duration(seconds)}, extrapolated by n³ from {measured} at {size}; not measured"

    def _memory_table(self) -> tables.Table:
        rows = []
        for program in PROGRAMS:
            a, b = formulas(program)
            counted = self.loads.get(program)
            least_and_most = [{counted[matrix][0], counted[matrix][1]} for matrix in "ab"] if counted else []
            shown_counts = ", ".join("–".join(f"{count:g}" for count in sorted(counts)) for counts in least_and_most)
            both = ", ".join(map(str, dict.fromkeys(reads(program))))
            rows.append([program, a, b, both, shown_counts or "not counted"])
        heads = ["program", "of a", "of b", f"at {N}", f"counted at n, l, m = {', '.join(map(str, COUNTED))}"]
        return tables.Table(heads, "lrrrl", rows, "how often is each element read from global memory?")

    def _lines_of_several(self) -> Iterator[str]:
        for (way, devices), line in self.several.items():
            what = f"{counted(devices, 'device')}, {'a rank each' if way == 'ranks' else 'a process for all'}"
            if not self.of_gpu:
                yield f"{what}: right, pretended by the CPU"
            elif way == "ranks":
                yield f"{what}: multiply {_median(line)}, host to host {_median(line, 'total')}"
            else:
                yield f"{what}: {_median(line)} from the first launch to the last end"

    def draw(self, path: str) -> None:
        """Seconds at 8000 beside the lecture's; reads of each element, and on a GPU the time against the number of devices."""
        count = 3 if self.of_gpu else 2
        title = f"Three programs at {N}×{N}, {DTYPE}"
        with plots.figure(path, (1.5 + 4 * count, 4.0), title, self.caption()) as figure:
            panels = plots.panels(figure, 1, count, width_ratios=[1.6, 1, 1][:count])
            self._draw_seconds(panels[0])
            _draw_reads(panels[1])
            if self.of_gpu:
                self._draw_several(panels[2])

    def _draw_seconds(self, panel: Any) -> None:
        rows = [("seq, lecture", LECTURE_SEQ_LEAST, "> 1 h", plots.LECTURE)]
        for kernel, order in ORDERS.items():
            if found := self.extrapolated(kernel):
                text = f"{wording.number(found[0])} s,{chr(10) if plots.narrow() else ' '}extrapolated from {found[1]}"
                rows.append((f"seq {order}, here", found[0], text, plots.GREY))
        for program, seconds in LECTURE_SECONDS.items():
            rows.append((f"{program}, lecture", seconds, f"{seconds} s", plots.LECTURE))
            line = self.programs[program]
            if self.of_gpu:
                size = "" if line["n"] == N else f" at {line['n']}"
                rows.append(
                    (f"{program}, here", line["seconds"]["median"], f"{line['seconds']['median']:.3g} s{size}", plots.HERE)
                )
        names, values, texts, colors = zip(*rows, strict=True)
        plots.plain(panel, "time" + ("" if self.of_gpu else " (no GPU here)"))
        plots.bars(panel, names, values, texts, colors)
        panel.set_xlim(
            right=max(values) * (1000 if any("extrapolated" in text for text in texts) else 30)
        )  # for the longest text
        panel.set_xlabel("seconds")

    def _draw_several(self, panel: Any) -> None:
        n = next(iter(self.several.values()))["n"]
        plots.plain(panel, f"matmul2 at {n} by number of GPUs")
        for way, what, color, size in (  # of two points at one place both are seen
            ("one process", "one process", plots.HERE, 7),
            ("ranks", "ranks, multiply", plots.OTHER, 4),
        ):
            points = [(devices, line["seconds"]["median"]) for (named, devices), line in self.several.items() if named == way]
            panel.plot(*zip(*points, strict=True), marker="os"[size < 5], markersize=size, color=color, label=what)
        panel.set_xticks(sorted({devices for _, devices in self.several}))
        panel.set_xlabel("GPUs")
        panel.set_ylabel("seconds")
        panel.set_ylim(0, 1.15 * max(line["seconds"]["median"] for line in self.several.values()))
        panel.legend(frameon=False, fontsize=8, loc="lower left")


def _median(line: records.Line, key: str = "seconds") -> str:
    return wording.duration(line[key]["median"])


def _draw_reads(panel: Any) -> None:
    plots.plain(panel, "reads of each element")
    of_a, of_b = zip(*map(reads, PROGRAMS), strict=True)
    plots.grouped_bars(panel, list(PROGRAMS), [("of a", plots.HERE, of_a), ("of b", plots.OTHER, of_b)])
    panel.set_ylabel("reads from global memory")
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    panel.margins(y=0.1)
    panel.legend(frameon=False, fontsize=8)
