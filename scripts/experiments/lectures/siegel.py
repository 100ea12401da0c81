# SPDX-License-Identifier: MIT
"""Matrix multiplication in three programs: python -m hybrid.lectures siegel [--picture FILE.svg]

The CUDA lecture's seq (three loops on one core), matmul1 (one thread per element) and matmul2 (tiles in shared memory) at
8000×8000 in float64, beside its 13.8 s and 4.8 s on a K40c. seq takes more than an hour there; here it is timed at smaller
sizes, in both orders of the loops. Where one is large enough to tell of 8000, the time there is extrapolated, and too short if
larger matrices leave the caches. Then how often each element is read from global memory, counted. On several devices, a rank
each: `mpirun -n 2 python -m hybrid.matmul 8000 8000 8000 --kernel tiled`.

Kernels are timed by CUDA events, with allocation and copies beside them. Without a GPU they run on the CPU's CUDA runtime at
200×200: products are checked, and nothing is said of their speed. --quick takes smaller sizes.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

from experiments.common import cli, cuda, plots, results
from experiments.lectures.ladder import count_loads, form_of, loads_of_elements
from hybrid.errors import DeviceUnavailable
from hybrid.kernels.catalogue import EMULATED_CAPABILITY

PROGRAMS = {"matmul1": "naive", "matmul2": "tiled"}  # the kernel of each
ORDERS = {"loops": "i j k", "loops_ikj": "i k j"}  # of the sequential program's loops, by kernel
DTYPE = "float64"
N = 8000  # of the lecture
LECTURE_SECONDS = {"matmul1": 13.8, "matmul2": 4.8}  # on a K40c
LECTURE_SEQ_LEAST = 3600.0
LEAST_EXTRAPOLATED = 500  # smaller matrices lie in caches, and times of theirs say nothing of 8000
COUNTED = (100, 60, 90)  # n, l, m: of no tile a multiple
SEQ_SIZES, SEQ_QUICK = (250, 500, 1000), (100, 200)
SIZES, QUICK = {"cuda": N, "emulate": 200}, {"cuda": 1000, "emulate": 72}
REPEAT, LOOPS_REPEAT, WHOLE_REPEAT = 5, 3, 3


def reads(program: str) -> tuple[str, str, tuple[int, int]]:
    """Of each element of a and of b: the formulas, and the numbers at 8000."""
    kernel = cuda.kernel_of(PROGRAMS[program])
    rows, columns = form_of(kernel, DTYPE, EMULATED_CAPABILITY).tile
    numbers = loads_of_elements(kernel.name, (rows, columns), (N, N, N))
    return ("m", "n", numbers) if kernel.name == "naive" else (f"ceil(m / {columns})", f"ceil(n / {rows})", numbers)


def measured(options: argparse.Namespace) -> Iterator[results.Line]:
    runtime = cuda.runtime_for(options.device)
    n = options.size or (QUICK if options.quick else SIZES)[runtime.device]
    cli.refuse_too_large(n, n, n, item=8)
    jobs = [(size, kernel) for size in (SEQ_QUICK if options.quick else SEQ_SIZES) for kernel in ORDERS]
    try:
        for size, kernel in cli.shown(jobs, "seq"):
            a, b = cuda.matrices("uniform", DTYPE, size, size, size)
            seconds = results.spread(cuda.loops_seconds(kernel, a, b, LOOPS_REPEAT))
            yield {**runtime.about, "part": "seq", "kernel": kernel, "n": size, "seconds": seconds}
    except DeviceUnavailable as missing:
        print(f"seq is left out: {missing}", file=sys.stderr)
    a, b = cuda.matrices("uniform", DTYPE, n, n, n)
    for program, kernel in cli.shown(list(PROGRAMS.items()), "kernels"):
        seconds = results.spread(cuda.kernel_seconds(runtime, cuda.kernel_of(kernel), a, b, REPEAT))
        repeat = WHOLE_REPEAT if runtime.device == "cuda" else 1
        whole = results.spread(cuda.whole_seconds(runtime, cuda.kernel_of(kernel), a, b, repeat))
        yield {**runtime.about, "part": "kernel", "program": program, "n": n, "seconds": seconds, "whole": whole}
    try:
        for program, kernel in PROGRAMS.items():
            of_a, of_b = count_loads(cuda.kernel_of(kernel), DTYPE, COUNTED)
            yield {**runtime.about, "part": "loads", "program": program, "shape": COUNTED, "a": of_a, "b": of_b}
    except DeviceUnavailable as missing:
        print(f"loads are not counted: {missing}", file=sys.stderr)


class Results(results.Results):
    """The last line of each measurement, and what follows from them."""

    command, again = "lecture_siegel", "python -m hybrid.lectures siegel"

    def __init__(self, lines: Sequence[results.Line]) -> None:
        super().__init__(lines)
        self.seq = {(line["kernel"], line["n"]): line["seconds"]["median"] for line in lines if line["part"] == "seq"}
        self.programs = {line["program"]: line for line in lines if line["part"] == "kernel"}
        self.loads = {line["program"]: line for line in lines if line["part"] == "loads"}

    def largest(self, kernel: str) -> int:
        """Size measured; 0: none."""
        return max((n for name, n in self.seq if name == kernel), default=0)

    def extrapolated(self, kernel: str) -> float:
        """Seconds at 8000, by n³ from the largest size measured."""
        sizes = [n for name, n in self.seq if name == kernel]
        return self.seq[kernel, max(sizes)] * (N / max(sizes)) ** 3

    def blocks(self) -> Iterator[results.Block]:
        title = f"{N}×{N}, {DTYPE}: {N**3:,} multiplications"
        yield results.Table(["program", "K40c (lecture)", "here"], "lrl", list(self._time_rows()), title)
        rows = []
        for program in PROGRAMS:
            of_a, of_b, numbers = reads(program)
            both = ", ".join(map(str, dict.fromkeys(numbers)))
            counted = self.loads.get(program)
            least_and_most = [sorted({counted[matrix][0], counted[matrix][1]}) for matrix in "ab"] if counted else []
            shown_counts = ", ".join("–".join(f"{count:g}" for count in counts) for counts in least_and_most)
            rows.append([program, of_a, of_b, both, shown_counts or "not counted"])
        heads = ["program", "of a", "of b", f"at {N}", f"counted at n, l, m = {', '.join(map(str, COUNTED))}"]
        yield results.Table(heads, "lrrrl", rows, "how often is each element read from global memory?")

    def _time_rows(self) -> Iterator[list[str]]:
        for kernel, order in ORDERS.items():
            here, size = "not measured", self.largest(kernel)
            if size:
                seconds = results.duration(self.seq[kernel, size])
                here = f"{seconds} at {size}, which says nothing of {N}"
                if size >= LEAST_EXTRAPOLATED:
                    whole = results.duration(self.extrapolated(kernel))
                    here = f"{whole}, extrapolated by n³ from {seconds} at {size}; not measured"
            yield [f"seq, {order}", "> 1 h" if kernel == "loops" else "", here]
        for program, line in self.programs.items():
            here = f"right at {line['n']}, on the CPU's CUDA runtime"
            if self.of_gpu:
                size = "" if line["n"] == N else f" at {line['n']}"
                alone, whole = (results.duration(line[key]["median"]) for key in ("seconds", "whole"))
                here = f"{alone}{size}, {whole} with allocation and copies"
            yield [program, f"{LECTURE_SECONDS[program]:.1f} s", here]
        if self.of_gpu and len(self.programs) == len(PROGRAMS):
            one, two = (self.programs[program]["seconds"]["median"] for program in PROGRAMS)
            yield ["ratio", f"{LECTURE_SECONDS['matmul1'] / LECTURE_SECONDS['matmul2']:.1f}", f"{one / two:.2f}"]

    def draw(self, path: str) -> None:
        """Seconds at 8000 beside the lecture's."""
        rows = [("seq, lecture", LECTURE_SEQ_LEAST, "> 1 h", plots.LECTURE)]
        for kernel, order in ORDERS.items():
            if (size := self.largest(kernel)) >= LEAST_EXTRAPOLATED:
                seconds = self.extrapolated(kernel)
                rows.append((f"seq {order}, here", seconds, f"{results.number(seconds)} s, from {size}", plots.GREY))
        for program, seconds in LECTURE_SECONDS.items():
            rows.append((f"{program}, lecture", seconds, f"{seconds} s", plots.LECTURE))
            if self.of_gpu:
                n, here = self.programs[program]["n"], self.programs[program]["seconds"]["median"]
                rows.append((f"{program}, here", here, f"{here:.3g} s" + ("" if n == N else f" at {n}"), plots.HERE))
        names, values, texts, colors = zip(*rows, strict=True)
        with plots.figure(path, (6.5, 4.0), f"Three programs at {N}×{N}, {DTYPE}", self.caption()) as figure:
            panel = figure.subplots()
            plots.plain(panel, "time" + ("" if self.of_gpu else " (no GPU here)"))
            plots.bars(panel, names, values, texts, colors)
            panel.set_xlabel("seconds")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.parser_for(__doc__)
    parser.add_argument("--size", type=cli.at_least_1, metavar="N", help=f"of the matrices ({N}; 200 without a GPU)")
    return cli.experiment(parser, Results, measured, arguments)
