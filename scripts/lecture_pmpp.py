"""The exercises on multidimensional grids: python scripts/lecture_pmpp.py [--launch ROWS COLUMNS X Y]

Exercise 1: a thread a row of C and a thread a column, beside a thread an element, on a square, a tall and a wide C of the same
work, float32; then what speaks for each, from the numbers. Exercise 2: a matrix times a vector, a thread an element, through
its host function. Exercise 3 and the other launches of the documents: --launch shows the arithmetic for any of them.

On a GPU C is 1024×1024 (--size), timed by CUDA events. Without one it is 96×96, on the CPU's CUDA runtime: the products are
checked, and nothing is said of speed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

import lecture_picture
import numpy as np
from lecture_common import (
    Line,
    at_least_1,
    caption,
    command,
    lines_of,
    of_gpu,
    on,
    parser_for,
    present,
    readable,
    refuse_too_large,
    shown,
    spread,
)
from lecture_launch import Covering, compared, explained, pieces_of_warp, threads_at_work
from lecture_names import DESIGNS, FORMS
from lecture_places import Place, place_for
from lecture_timing import kernel_of, kernel_seconds, matrices, refuse_wrong
from report_table import Block, Remarks, Table, printed

from hybrid.errors import UsageError

NAME, DTYPE, ITEM = "lecture_pmpp", "float32", 4
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


def stub_on(place: Place) -> Stub:
    """Exercise 2's host function: stub(out, matrix, vector, n) computes out[i] = Σ matrix[i][j]·vector[j], float32."""

    def stub(out: np.ndarray, matrix: np.ndarray, vector: np.ndarray, n: int) -> None:
        try:
            on_matrix, on_vector, on_out = (place.allocate(n, columns, DTYPE) for columns in (n, 1, 1))
            place.copy(on_matrix, matrix.reshape(n, n))
            place.copy(on_vector, vector.reshape(n, 1))
            place.launch(kernel_of("matvec"), on_matrix, on_vector, on_out)
            place.copy(out.reshape(n, 1), on_out)
        finally:
            place.release()

    return stub


def measured(place: Place, size: int, vector: int) -> Iterator[Line]:
    about = on(place)
    jobs = [(shape, design) for shape in shapes(size).items() for design in DESIGNS]
    for (form, (n, l, m)), design in shown(jobs, "exercise 1"):
        a, b = matrices("uniform", DTYPE, n, l, m)
        seconds = spread(kernel_seconds(place, kernel_of(design), a, b, REPEAT))
        yield {**about, "part": "exercise 1", "kernel": design, "form": form, "n": n, "l": l, "m": m, "seconds": seconds}
    a, b = matrices("uniform", DTYPE, vector, vector, 1)
    out = np.full(vector, np.nan, DTYPE)
    stub_on(place)(out, a, b[:, 0].copy(), vector)
    refuse_wrong("stub", a, b, out[:, None])
    for kernel in shown(("matvec", "matvec_warp"), "exercise 2"):
        seconds = spread(kernel_seconds(place, kernel_of(kernel), a, b, REPEAT))
        yield {**about, "part": "exercise 2", "kernel": kernel, "n": vector, "seconds": seconds}


# --- what it says


class Results:
    """The last line of each kernel and shape."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self.designs = {(line["form"], line["kernel"]): line for line in lines if line["part"] == "exercise 1"}
        self.vectors = {line["kernel"]: line for line in lines if line["part"] == "exercise 2"}
        self.speeds = of_gpu(lines)

    def forms(self) -> list[str]:
        return list(dict.fromkeys(form for form, _ in self.designs))

    def gigaflops(self, form: str, design: str) -> float:
        line = self.designs[form, design]
        return 2 * line["n"] * line["l"] * line["m"] / line["seconds"]["median"] / 1e9


def table(results: Results) -> Iterator[str]:
    yield caption(results.lines)
    yield from printed(blocks(results))


def blocks(results: Results) -> Iterator[Block]:
    heads = ["C", "n×l · l×m", "kernel", "threads", *(["time", "GF/s"] if results.speeds else ["product"])]
    rows = []
    for (form, design), line in results.designs.items():
        shape = f"{line['n']}×{line['l']} · {line['l']}×{line['m']}"
        threads = threads_at_work(design, line["n"], line["m"])
        speed = [readable(line["seconds"]["median"]), f"{results.gigaflops(form, design):.4g}"]
        rows.append([form, shape, design, f"{threads:,}", *(speed if results.speeds else ["right"])])
    yield Table(heads, "lllrrr"[: len(heads)], rows, f"exercise 1, {DTYPE}")
    yield Remarks(list(verdicts(results)), "for and against")
    yield Table(["kernel", "matrix", "outcome"], "lll", list(_vector_rows(results)), "exercise 2, a matrix times a vector")
    yield compared()


def _vector_rows(results: Results) -> Iterator[list[str]]:
    for kernel, line in results.vectors.items():
        n, seconds = line["n"], line["seconds"]["median"]
        outcome = f"{readable(seconds)}, {ITEM * n * n / seconds / 1e9:.4g} GB/s of the matrix" if results.speeds else "right"
        yield [kernel, f"{n}×{n}", outcome]


def verdicts(results: Results) -> Iterator[str]:
    """Pros and cons, each with its numbers."""
    square = results.designs["square", "naive"]
    of = {design: pieces_of_warp(design, square["l"], square["m"], ITEM) for design in DESIGNS}
    row, column = of["row_per_thread"], of["column_per_thread"]
    yield f"of A a warp of rows loads {row.load_a} pieces of 32 bytes, of C it stores {row.store_c}; it shares B's element"
    yield f"of B a warp of columns loads {column.load_b} pieces, of C it stores {column.store_c}; it shares A's element"
    for form in results.forms():
        n, m = (results.designs[form, "naive"][side] for side in "nm")
        yield f"{form}: {n:,} threads by rows, {m:,} by columns, {n * m:,} by elements" + _speeds(results, form)


def _speeds(results: Results, form: str) -> str:
    if not results.speeds:
        return ""
    by = {design: results.gigaflops(form, design) for design in DESIGNS}
    rows, columns = by["row_per_thread"], by["column_per_thread"]
    elements = by["naive"] / max(rows, columns)
    return f"; columns {columns / rows:.3g} × as fast as rows, elements {elements:.3g} × as fast as the better of them"


def draw(results: Results, path: str) -> None:
    """Pieces of memory and threads of each design; on a GPU its speed as well."""
    colors = dict(zip(DESIGNS, (lecture_picture.OTHER, lecture_picture.LECTURE, lecture_picture.HERE), strict=True))
    forms = results.forms()
    count = 3 if results.speeds else 2
    with lecture_picture.figure(
        path, (4.3 * count, 3.9), "A thread a row, a column, or an element of C", caption(results.lines)
    ) as figure:
        panels = figure.subplots(1, count)
        for place, design in enumerate(DESIGNS):
            square = results.designs["square", design]
            pieces = pieces_of_warp(design, square["l"], square["m"], ITEM)
            groups = [
                (pieces.load_a, pieces.load_b, pieces.store_c),
                [threads_at_work(design, line["n"], line["m"]) for line in (results.designs[form, design] for form in forms)],
                [results.gigaflops(form, design) for form in forms] if results.speeds else [],
            ]
            for panel, values in zip(panels, groups, strict=False):
                across = [group + 0.27 * (place - 1) for group in range(len(values))]
                drawn = panel.bar(across, values, 0.25, color=colors[design], label=design)
                panel.bar_label(drawn, [_short(value) for value in values], fontsize=7, padding=2)
        units = ("pieces of 32 bytes", "threads", "GF/s")
        titles = ("touched by a warp's instruction", "with something to compute", f"speed, {DTYPE}")
        ticks = (("load of A", "load of B", "store to C"), forms, forms)
        for panel, title, unit, names in zip(panels, titles, units, ticks, strict=False):
            lecture_picture.plain(panel, title)
            panel.set_ylabel(unit)
            panel.set_xticks(range(len(names)), names)
        for panel in panels[1:]:
            panel.set_yscale("log")
            panel.margins(y=0.15)
        panels[0].legend(loc="upper center", frameon=False, fontsize=8)


def _short(value: float) -> str:
    """268, 16.4k, 4.19M."""
    scale, unit = (1e6, "M") if value >= 1e6 else (1e3, "k") if value >= 1e4 else (1.0, "")
    return f"{value / scale:,.0f}" if 1000 <= value < 1e4 else f"{value / scale:.3g}{unit}"


# --- the command


def work(options: argparse.Namespace) -> int:
    if options.launch:
        print(*explained(Covering(*options.launch)), sep="\n")
        return 0
    return present(Results(lines_of(options, NAME, _measured(options))), options, table, draw)


def _measured(options: argparse.Namespace) -> Iterator[Line]:
    place = place_for(options.device)
    size = options.size or (QUICK if options.quick else SIZES)[place.device]
    if size % 4:
        raise UsageError(f"--size {size}: a multiple of 4, for the tall C and the wide one")
    for shape in shapes(size).values():
        refuse_too_large(*shape)
    yield from measured(place, size, VECTOR[place.device] // (4 if options.quick else 1))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    parser.add_argument("--size", type=at_least_1, metavar="N", help="rows and columns of the square C")
    launch = ("ROWS", "COLUMNS", "X", "Y")
    parser.add_argument("--launch", nargs=4, type=at_least_1, metavar=launch, help="only the arithmetic: X×Y threads a block")
    return command(parser, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
