# SPDX-License-Identifier: MIT
"""The exercises on multidimensional grids: python -m hybrid.lectures pmpp [--launch ROWS COLUMNS X Y]

Exercise 1: a thread for each row of C and one for each column, beside a thread for each element, on a square, a tall and a wide
C of the same work, float32; then what speaks for each, from the numbers. Exercise 2: a matrix times a vector, a thread for each
element, through its host function. Exercise 3 and the other launches of the documents: --launch shows the arithmetic for any,
and with --picture the blocks over C, both ways.

On a GPU C is 1024×1024 (--size), timed by CUDA events. Without one it is 96×96, on the CPU's CUDA runtime: the products are
checked, and nothing is said of speed.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from experiments.common import cli, cuda, plots, product_check, records, results, tables, timing, wording
from experiments.lectures import launch_picture
from experiments.lectures.launch_arithmetic import compared, explained, sectors_of_warp, threads_at_work
from hybrid.errors import UsageError
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, launch_of

DTYPE, ITEM = "float32", 4
DESIGNS = ("naive", "row_per_thread", "column_per_thread")  # a thread for each element, row, column
VECTOR_KERNELS = ("matvec", "matvec_warp")
FORMS = ("square", "tall", "wide")  # of C
SIZES = {"cuda": 1024, "emulate": 96}
QUICK = {"cuda": 256, "emulate": 48}
VECTOR = {"cuda": 16384, "emulate": 512}
SLENDER = 16  # times as many rows as the square C has, or columns; its other sides a quarter: the same multiply-adds
REPEAT = 7

Shape = tuple[int, int, int]
Stub = Callable[[np.ndarray, np.ndarray, np.ndarray, int], None]


def shapes(size: int) -> dict[str, Shape]:
    """n, l, m of the same work: n threads or m threads, many or few."""
    quarter = size // 4
    sides = (size, size, size), (SLENDER * size, quarter, quarter), (quarter, quarter, SLENDER * size)
    return dict(zip(FORMS, sides, strict=True))


def stub_on(runtime: cuda.CudaRuntime) -> Stub:
    """Exercise 2's host function: stub(out, matrix, vector, n) computes out[i] = Σ matrix[i][j]·vector[j], float32."""

    def stub(out: np.ndarray, matrix: np.ndarray, vector: np.ndarray, n: int) -> None:
        try:
            on_matrix, on_vector, on_out = (runtime.allocate(n, columns, DTYPE) for columns in (n, 1, 1))
            runtime.copy(on_matrix, matrix.reshape(n, n))
            runtime.copy(on_vector, vector.reshape(n, 1))
            runtime.launch(timing.kernel_of("matvec"), on_matrix, on_vector, on_out)
            runtime.copy(out.reshape(n, 1), on_out)
        finally:
            runtime.release()

    return stub


def measured(runtime: cuda.CudaRuntime, size: int, vector: int) -> Iterator[records.Line]:
    jobs = [(shape, design) for shape in shapes(size).items() for design in DESIGNS]
    for (form, (n, l, m)), design in cli.shown(jobs, "exercise 1"):
        a, b = timing.matrices("uniform", DTYPE, n, l, m)
        seconds = records.spread(timing.kernel_seconds(runtime, timing.kernel_of(design), a, b, REPEAT))
        yield {"part": "exercise 1", "kernel": design, "form": form, "n": n, "l": l, "m": m, "seconds": seconds}
    a, b = timing.matrices("uniform", DTYPE, vector, vector, 1)
    out = np.full(vector, np.nan, DTYPE)
    stub_on(runtime)(out, a, b[:, 0].copy(), vector)
    product_check.refuse_wrong("stub", a, b, out[:, None])
    for kernel in cli.shown(VECTOR_KERNELS, "exercise 2"):
        seconds = records.spread(timing.kernel_seconds(runtime, timing.kernel_of(kernel), a, b, REPEAT))
        yield {"part": "exercise 2", "kernel": kernel, "n": vector, "seconds": seconds}


class Results(results.Results):
    """The last line of each kernel and shape."""

    command, again = "lecture_pmpp", "python -m hybrid.lectures pmpp"

    def __init__(self, lines: Sequence[records.Line]) -> None:
        super().__init__(lines)
        self.designs = {(line["form"], line["kernel"]): line for line in lines if line["part"] == "exercise 1"}
        self.vectors = {line["kernel"]: line for line in lines if line["part"] == "exercise 2"}
        self.forms = list(dict.fromkeys(form for form, _ in self.designs))

    def gigaflops(self, form: str, design: str) -> float:
        line = self.designs[form, design]
        return 2 * line["n"] * line["l"] * line["m"] / line["seconds"]["median"] / 1e9

    def blocks(self) -> Iterator[tables.Block]:
        heads = ["C", "n×l · l×m", "kernel", "launch", "threads", *(["time", "GF/s"] if self.of_gpu else ["product"])]
        rows = []
        for (form, design), line in self.designs.items():
            shape = f"{line['n']}×{line['l']} · {line['l']}×{line['m']}"
            threads = threads_at_work(design, line["n"], line["m"])
            speed = [wording.duration(line["seconds"]["median"]), f"{self.gigaflops(form, design):.4g}"]
            launch = _launch(design, line["n"], line["m"])
            rows.append([form, shape, design, launch, f"{threads:,}", *(speed if self.of_gpu else ["right"])])
        yield tables.Table(heads, "llllrrr"[: len(heads)], rows, f"exercise 1, {DTYPE}")
        yield tables.Remarks(list(self._for_and_against()), "for and against")
        rows = [[kernel, f"{line['n']}×{line['n']}", self._of_vector(line)] for kernel, line in self.vectors.items()]
        yield tables.Table(["kernel", "matrix", "outcome"], "lll", rows, "exercise 2, a matrix times a vector")
        yield compared()

    def _of_vector(self, line: records.Line) -> str:
        n, seconds = line["n"], line["seconds"]["median"]
        return f"{wording.duration(seconds)}, {ITEM * n * n / seconds / 1e9:.4g} GB/s of the matrix" if self.of_gpu else "right"

    def _for_and_against(self) -> Iterator[str]:
        square = self.designs["square", "naive"]
        row, column = (sectors_of_warp(design, square["l"], square["m"], ITEM) for design in DESIGNS[1:])
        of_row, of_column = "with a thread for each row", "with a thread for each column"
        loads = f"a warp's loads of A touch {row[0]} sectors of 32 bytes (uncoalesced), its stores to C {row[2]}"
        yield f"{of_row} {loads}; a load of B is a broadcast"
        loads = f"a warp's loads of B touch {column[1]} sectors (coalesced), its stores to C {column[2]}"
        yield f"{of_column} {loads}; a load of A is a broadcast"
        for form in self.forms:
            n, m = (self.designs[form, "naive"][side] for side in "nm")
            yield f"{form}: {n:,} threads by rows, {m:,} by columns, {n * m:,} by elements" + self._speeds(form)

    def _speeds(self, form: str) -> str:
        if not self.of_gpu:
            return ""
        elements, rows, columns = (self.gigaflops(form, design) for design in DESIGNS)
        (better, fast), (worse, slow) = sorted([("rows", rows), ("columns", columns)], key=lambda each: -each[1])
        return f"; {better} {fast / slow:.3g} × as fast as {worse}, elements {elements / fast:.3g} × as fast as {better}"

    def draw(self, path: str) -> None:
        """Sectors of memory and threads of each design; on a GPU its speed as well."""
        colors = dict(zip(DESIGNS, (plots.OTHER, plots.LECTURE, plots.HERE), strict=True))
        square = self.designs["square", "naive"]
        sides = [(line["n"], line["m"]) for form in self.forms for line in [self.designs[form, "naive"]]]
        panels: list[tuple[str, str, Sequence[str], Callable[[str], list[float]]]] = [
            ("touched by a warp's instruction", "sectors of 32 bytes", ("load of A", "load of B", "store to C"),
             lambda design: sectors_of_warp(design, square["l"], square["m"], ITEM)),
            ("with something to compute", "threads", self.forms,
             lambda design: [threads_at_work(design, n, m) for n, m in sides]),
            (f"speed, {DTYPE}", "GF/s", self.forms, lambda design: [self.gigaflops(form, design) for form in self.forms]),
        ][: 3 if self.of_gpu else 2]  # fmt: skip
        title = "A thread for each row, column, or element of C"
        with plots.figure(path, (4.3 * len(panels), 3.9), title, self.caption()) as figure:
            for index, (panel, (title, unit, names, of)) in enumerate(
                zip(plots.panels(figure, 1, len(panels)), panels, strict=True)
            ):
                plots.plain(panel, title)
                plots.grouped_bars(panel, names, [(design, colors[design], of(design)) for design in DESIGNS], _short)
                panel.set_ylabel(unit)
                if index:
                    plots.from_a_power_of_ten(panel, [value for design in DESIGNS for value in of(design)])
                else:
                    panel.legend(loc="upper center", frameon=False, fontsize=8)


def _launch(design: str, n: int, m: int) -> str:
    """Grid and block, as they stand between <<< and >>>; sides of 1 are left out, as dim3 allows."""
    launch = launch_of(timing.kernel_of(design), DTYPE, n, m, EMULATED_CAPABILITY)
    grid, block = (", ".join(map(str, side if side[1] > 1 else side[:1])) for side in (launch.grid, launch.block))
    return f"grid({grid}), block({block})"


def _short(value: float) -> str:
    """268, 1024, 16.4k, 4.19M."""
    scale, unit = (1e6, "M") if value >= 1e6 else (1e3, "k") if value >= 1e4 else (1.0, "")
    return f"{value:.0f}" if 1000 <= value < 1e4 else f"{value / scale:.3g}{unit}"


def work(options: argparse.Namespace) -> int:
    if options.launch:
        print(*explained(*options.launch), sep="\n")
        if options.picture:
            launch_picture.draw(options.picture, *options.launch)
        return 0
    return cli.present(options, Results, _measured)


def _measured(options: argparse.Namespace) -> Iterator[records.Line]:
    runtime = cuda.runtime_for(options.device)
    size = options.size or (QUICK if options.quick else SIZES)[runtime.device]
    if size % 4:
        raise UsageError(f"--size {size}: a multiple of 4, for the tall C and the wide one")
    for shape in shapes(size).values():
        cli.refuse_too_large(*shape)
    yield from cuda.on(runtime, measured(runtime, size, VECTOR[runtime.device] // (4 if options.quick else 1)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.parser_for(__doc__)
    parser.add_argument("--size", type=cli.at_least_1, metavar="N", help="rows and columns of the square C")
    launch = ("ROWS", "COLUMNS", "X", "Y")
    parser.add_argument("--launch", nargs=4, type=cli.at_least_1, metavar=launch, help="only the arithmetic: X×Y threads a block")
    return cli.command(parser, work, arguments, drawn_by_itself="launch")
