# SPDX-License-Identifier: MIT
"""Matrix multiplication in three programs: python -m hybrid.lectures siegel [--picture FILE.svg]

The CUDA lecture's seq (three loops on one core), matmul1 (one thread per element) and matmul2 (tiles in shared memory) at
8000×8000 in float64, beside its 13.8 s and 4.8 s on a K40c. seq takes more than an hour there; here it is timed at smaller
sizes, in both orders of the loops. Where one is large enough to tell of 8000, the time there is extrapolated, and too short if
larger matrices leave the caches. Then how often each element is read from global memory, counted; and several devices, from one
process that sets one after the other, and from as many ranks.

Kernels are timed by CUDA events, with allocation and copies beside them. Without a GPU they run on the CPU's CUDA runtime at
200×200, and two devices are pretended: products are checked, and nothing is said of their speed. --quick takes smaller sizes.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.common import cli, cuda, plots, product_check, records, results, tables
from experiments.lectures.loads import count_loads, form_of, loads_of_elements
from hybrid.core.spans import block
from hybrid.core.text import counted
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import DeviceUnavailable
from hybrid.host.memory import available_host_bytes
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
    rows, columns = form_of(cuda.kernel_of(PROGRAMS[program]), DTYPE, EMULATED_CAPABILITY).tile
    return f"ceil(m / {columns})", f"ceil(n / {rows})"


def reads(program: str, shape: tuple[int, int, int] = (N, N, N)) -> tuple[int, int]:
    """The same in numbers."""
    kernel = cuda.kernel_of(PROGRAMS[program])
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
            return f"{records.duration(self.seq[kernel, max(sizes)])} at {max(sizes)}, which says nothing of {N}"
        seconds, size = found
        measured = records.duration(self.seq[kernel, size])
        return f"{records.duration(seconds)}, extrapolated by n³ from {measured} at {size}; not measured"

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
                text = f"{records.number(found[0])} s,{chr(10) if plots.narrow() else ' '}extrapolated from {found[1]}"
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
    return records.duration(line[key]["median"])


def _draw_reads(panel: Any) -> None:
    plots.plain(panel, "reads of each element")
    of_a, of_b = zip(*map(reads, PROGRAMS), strict=True)
    plots.grouped_bars(panel, list(PROGRAMS), [("of a", plots.HERE, of_a), ("of b", plots.OTHER, of_b)])
    panel.set_ylabel("reads from global memory")
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    panel.margins(y=0.1)
    panel.legend(frameon=False, fontsize=8)


PRETENDED = 2  # devices that a CPU stands for
SEQ_SIZES, SEQ_QUICK = (250, 500, 1000), (100, 200)
SIZES, QUICK = {"cuda": N, "emulate": 200}, {"cuda": 1000, "emulate": 72}
REPEAT, LOOPS_REPEAT, WHOLE_REPEAT = 5, 3, 3


def measured(runtime: cuda.CudaRuntime, n: int, seq_sizes: Sequence[int]) -> Iterator[records.Line]:
    yield from _seq(seq_sizes)
    a, b = cuda.matrices("uniform", DTYPE, n, n, n)
    for program, kernel in cli.shown(list(PROGRAMS.items()), "kernels"):
        seconds = records.spread(cuda.kernel_seconds(runtime, cuda.kernel_of(kernel), a, b, REPEAT))
        repeat = WHOLE_REPEAT if runtime.device == "cuda" else 1
        whole = records.spread(cuda.whole_seconds(runtime, cuda.kernel_of(kernel), a, b, repeat))
        yield {"part": "kernel", "program": program, "n": n, "seconds": seconds, "whole": whole}
    yield from loads()
    kernel, runtimes = PROGRAMS["matmul2"], runtimes_like(runtime)
    for count in cli.shown(counts_up_to(len(runtimes)), "one process"):
        seconds = records.spread(by_one_process(runtimes[:count], kernel, a, b, REPEAT))
        yield {"part": "several", "way": "one process", "devices": count, "n": n, "seconds": seconds}
    for count in cli.shown(counts_up_to(len(runtimes)), "ranks"):
        run = by_ranks(count, runtime.device, kernel, n, REPEAT if runtime.device == "cuda" else 1)
        seconds, total = run["seconds"]["multiply"], run["total"]
        yield {"part": "several", "way": "ranks", "devices": count, "n": n, "seconds": seconds, "total": total}


def _seq(sizes: Sequence[int]) -> Iterator[records.Line]:
    jobs = [(size, kernel) for size in sizes for kernel in ORDERS]
    for size, kernel in cli.shown(jobs, "seq"):
        a, b = cuda.matrices("uniform", DTYPE, size, size, size)
        try:
            seconds = records.spread(cuda.loops_seconds(kernel, a, b, LOOPS_REPEAT))
        except DeviceUnavailable as missing:
            print(f"seq is left out: {missing}", file=sys.stderr)
            return
        yield {"part": "seq", "kernel": kernel, "n": size, "seconds": seconds}


def loads() -> Iterator[records.Line]:
    """How often each element is read, counted on the emulated GPU."""
    for program, kernel in PROGRAMS.items():
        try:
            counted = count_loads(cuda.kernel_of(kernel), DTYPE, COUNTED)
        except DeviceUnavailable as missing:
            print(f"loads are not counted: {missing}", file=sys.stderr)
            return
        yield {"part": "loads", "program": program, "shape": COUNTED, "a": counted.a, "b": counted.b}


def runtimes_like(runtime: cuda.CudaRuntime) -> list[cuda.CudaRuntime]:
    """All GPUs of this machine, or where there is none some that the CPU stands for."""
    if runtime.device == "cuda":
        return [cuda.GpuRuntime(gpu) for gpu in usable_gpus()]
    return [cuda.EmulatedRuntime(available_host_bytes()) for _ in range(PRETENDED)]


def counts_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and all."""
    return sorted({*(2**power for power in range(most.bit_length()) if 2**power <= most), most})


def by_one_process(runtimes: Sequence[cuda.CudaRuntime], kernel: str, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
    """Seconds from the first launch until every device is done. Each has B and its share of A's rows, and makes those of C."""
    c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
    spans = [block(len(a), len(runtimes), index).slice for index in range(len(runtimes))]
    try:
        operands: list[tuple[Any, Any, Any]] = []
        for runtime, rows in zip(runtimes, spans, strict=True):
            on_a, on_b, on_c = (runtime.allocate(*matrix.shape, a.dtype.name) for matrix in (a[rows], b, c[rows]))
            runtime.copy(on_a, a[rows])
            runtime.copy(on_b, b)
            runtime.poison(on_c)
            operands.append((on_a, on_b, on_c))

        def multiply() -> None:
            for runtime, (on_a, on_b, on_c) in zip(runtimes, operands, strict=True):
                runtime.launch(cuda.kernel_of(kernel), on_a, on_b, on_c)
            for runtime in runtimes:
                runtime.synchronize()

        first = records.seconds_of(multiply)
        for runtime, rows, (_, _, on_c) in zip(runtimes, spans, operands, strict=True):
            runtime.copy(c[rows], on_c)
        product_check.refuse_wrong(f"{kernel} on {len(runtimes)} devices", a, b, c)
        return [records.seconds_of(multiply) for _ in range(repeat)] if runtimes[0].device == "cuda" else [first]
    finally:
        for runtime in runtimes:
            runtime.release()


def by_ranks(ranks: int, device: str, kernel: str, n: int, repeat: int) -> records.Line:
    """The runner's own line of n×n float64 matrices on so many ranks, a device each."""
    return records.matmul(ranks, n, "--device", device, "--kernel", kernel, "--fill", "uniform", "--repeat", str(repeat))


def _measured(options: argparse.Namespace) -> Iterator[records.Line]:
    runtime = cuda.runtime_for(options.device)
    n = options.size or (QUICK if options.quick else SIZES)[runtime.device]
    cli.refuse_too_large(n, n, n, 8)
    yield from cuda.on(runtime, measured(runtime, n, SEQ_QUICK if options.quick else SEQ_SIZES))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.parser_for(__doc__)
    parser.add_argument("--size", type=cli.at_least_1, metavar="N", help="of matmul1 and matmul2")
    return cli.command(parser, partial(cli.present, results=Results, measured=_measured), arguments)
