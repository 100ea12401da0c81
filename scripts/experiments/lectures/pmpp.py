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

from experiments.common import cli, cuda, plots, product_check, records, results, tables
from experiments.common.tables import Table, printed
from hybrid.errors import UsageError
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, launch_of
from hybrid.reporting import svg

MOST_THREADS = 1024  # of a block, on every GPU
WARP = 32
MOST_BLOCKS = {"x": 2**31 - 1, "y": 65_535}  # of a grid, on every GPU
SECTOR_BYTES = 32  # the least that is loaded from global memory

Number = int | tuple[int, int]


def covering(rows: int, columns: int, x: int, y: int) -> dict[str, Number]:
    """A rows×columns matrix under blocks of x×y threads, one thread per element. UsageError for a block that no GPU takes."""
    block = x * y
    if block > MOST_THREADS:
        raise UsageError(f"a block of {x}×{y} has {block} threads, and {MOST_THREADS} are the most")
    across, down = -(-columns // x), -(-rows // y)
    blocks, passing = across * down, rows * columns
    return {
        "threads a block": block,
        "grid": (across, down),
        "blocks": blocks,
        "threads": blocks * block,
        "pass the bounds test": passing,
        "have nothing to do": blocks * block - passing,
    }


def tile_phase(tile: int) -> dict[str, Number]:
    """What a block does with one pair of tile×tile tiles in shared memory: a multiplication and an addition a thread and step."""
    return {"loads": 2 * tile**2, "operations": tile**2 * 2 * tile}


def sectors_of_warp(kernel: str, l: int, m: int, item: int) -> list[int]:
    """Of memory, that a warp's instruction touches, away from the edges of C: load A, load B, store C."""
    # By lane: which element of A, of B and of C; naive's blocks of 16×16 have two rows in a warp.
    of_a, of_b, of_c = {
        "naive": (lambda lane: lane // 16 * l, lambda lane: lane % 16, lambda lane: lane // 16 * m + lane % 16),
        "row_per_thread": (lambda lane: lane * l, lambda lane: 0, lambda lane: lane * m),
        "column_per_thread": (lambda lane: 0, lambda lane: lane, lambda lane: lane),
    }[kernel]
    return [len({element(lane) * item // SECTOR_BYTES for lane in range(WARP)}) for element in (of_a, of_b, of_c)]


def threads_at_work(kernel: str, n: int, m: int) -> int:
    """Threads that have something to compute."""
    return {"naive": n * m, "row_per_thread": n, "column_per_thread": m}[kernel]


# What the documents say of launches, beside what is computed of them.
LECTURES: tuple[tuple[str, dict[str, Number], dict[str, Number]], ...] = (
    ("exercise 3", covering(150, 300, 16, 32),
     {"threads a block": 512, "grid": (19, 5), "blocks": 95, "threads": 48_640, "pass the bounds test": 45_000}),
    ("figure 2.1", covering(70, 200, 32, 16), {"threads a block": 512, "grid": (7, 5), "blocks": 35}),
    ("100×200 · 200×500", covering(100, 500, 16, 16), {"pass the bounds test": 50_000}),
    ("slides, 1024²", covering(1024, 1024, 16, 16), {"threads a block": 256, "grid": (64, 64), "blocks": 4096}),
    ("slides, tile 16", tile_phase(16), {"loads": 512, "operations": 8192}),
)  # fmt: skip


def explained(rows: int, columns: int, x: int, y: int) -> Iterator[str]:
    """Lines that show the way to each number."""
    yield f"C of {rows}×{columns} under blocks of {x}×{y} threads (x×y), one thread per element"
    numbers = covering(rows, columns, x, y)
    grid, blocks, block = (numbers[name] for name in ("grid", "blocks", "threads a block"))
    of_grid = f"ceil({columns} / {x}) × ceil({rows} / {y})"
    yield from _explained(numbers, (f"{x} · {y}", of_grid, "", f"{blocks:,} · {block:,}", f"{rows} · {columns}", ""))
    yield f"dim3 block({x}, {y}), grid({grid[0]}, {grid[1]});  // kernel<<<grid, block>>>(...)"
    if x != y:
        turned = covering(rows, columns, y, x)
        yield f"the other way round, blocks of {y}×{x}: a grid of {_text(turned['grid'])}, {_text(turned['blocks'])} blocks"
    for side, count in zip("xy", grid, strict=True):
        if count > MOST_BLOCKS[side]:
            yield f"CUDA takes at most {MOST_BLOCKS[side]:,} blocks in {side}: several launches, or several elements a thread"
    if x == y:
        yield f"with tiles of {x}×{x} in shared memory, a block and a pair of tiles:"
        yield from _explained(tile_phase(x), (f"2 · {x}²", f"{x}² · 2 · {x}"))
        yield f"  loads a multiply-add  2/{x}  (without tiles 2)"


def _explained(numbers: dict[str, Number], ways: tuple[str, ...]) -> Iterator[str]:
    rows = [[f"  {name}", _text(number), way] for (name, number), way in zip(numbers.items(), ways, strict=True)]
    return printed([Table(["", "", ""], "lrl", rows)])


def compared() -> Table:
    """Each number of the documents beside the computed one."""
    rows = []
    for source, computed, said in LECTURES:
        rows += [[source, name, _text(number), _text(computed[name])] for name, number in said.items()]
    return Table(["source", "number", "lecture", "computed"], "llrr", rows, "launches")


def _text(number: Number) -> str:
    return "×".join(map(str, number)) if isinstance(number, tuple) else f"{number:,}"


MOST_DRAWN = 2000  # that a picture shows
_NUMBERED = 60  # blocks, of which each has its number
_LONG, _LEFT, _TOP, _HEAD, _BETWEEN = 640, 64, 34, 46, 24  # of the longer side, and of what is around a grid
_STYLE = """\
.covered { fill-opacity: 0.15 } .edge { fill: none; stroke-width: 2 } .blocks { fill: none; stroke-width: 0.7 }
"""
_HATCHES = (
    '<pattern id="outside" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="stroke-second" d="M0 0V6" stroke-width="2"/></pattern>'
)


def draw_launch(path: str, rows: int, columns: int, x: int, y: int) -> None:
    """Blocks of x×y threads; beside them, where x and y differ, the same with x and y exchanged. UsageError for too many."""
    ways = [(x, y)] if x == y else [(x, y), (y, x)]
    for way in ways:
        blocks = covering(rows, columns, *way)["blocks"]
        if isinstance(blocks, int) and blocks > MOST_DRAWN:
            raise UsageError(f"a picture of {blocks:,} blocks would be black: {MOST_DRAWN:,} are the most")
    longest = max(max(_covered(columns, way[0]), _covered(rows, way[1])) for way in ways)
    scale = _LONG / longest
    sizes = [(_LEFT + scale * _covered(columns, way[0]) + 36, _TOP + _HEAD + scale * _covered(rows, way[1])) for way in ways]
    wide = columns >= rows
    widths, heights = zip(*sizes, strict=True)
    widths = tuple(max(width, 440) for width in widths)
    size = (max(widths), sum(heights)) if wide else (sum(widths), max(heights))

    def drawn() -> Iterator[str]:
        yield _HATCHES
        yield svg.text(12, 20, title, more='style="font-weight: 600"')
        across, down = 0.0, 0.0
        for way, (_, height), width in zip(ways, sizes, widths, strict=True):
            yield f'<g transform="translate({across:.0f} {down + 30:.0f})">'
            yield from _grid(rows, columns, *way, scale)
            yield "</g>"
            across, down = (0.0, down + height) if wide else (across + width, 0.0)

    title = f"C of {rows}×{columns}, a thread for each element"
    svg.write(path, title, (size[0], size[1] + _BETWEEN), drawn(), _STYLE)


def _covered(length: int, side: int) -> int:
    return -(-length // side) * side


def _grid(rows: int, columns: int, x: int, y: int, scale: float) -> Iterator[str]:
    numbers = covering(rows, columns, x, y)
    across, down = numbers["grid"]  # type: ignore[misc]
    whole, beside = numbers["blocks"], numbers["have nothing to do"]
    yield svg.text(
        12, 14, f"blocks of x = {x}, y = {y}: {across} × {down} = {whole:,} blocks, {beside:,} threads lie outside of C"
    )
    width, height = across * x * scale, down * y * scale
    yield f'<g transform="translate({_LEFT} {_TOP + 18})">'
    for at in dict.fromkeys((0, columns, across * x)):  # C's last column and the grid's may be near each other
        anchor = "middle" if at in (0, columns == across * x and at) else "end" if at == columns else "start"
        yield svg.text(at * scale, -6, str(at), "fill-soft", f'text-anchor="{anchor}"')
    for at in dict.fromkeys((0, rows, down * y)):
        lower = 4 if at != rows or (down * y - rows) * scale > 12 else -2
        yield svg.text(-6, at * scale + lower, str(at), "fill-soft", 'text-anchor="end"')
    yield svg.text(width / 2, -6, "column, x", "fill-soft", 'text-anchor="middle"')
    yield svg.text(-44, height / 2, "row, y", "fill-soft", f'text-anchor="middle" transform="rotate(-90 -44 {height / 2:.1f})"')
    yield f'<rect width="{width:.1f}" height="{height:.1f}" fill="url(#outside)"/>'
    inside = f'width="{columns * scale:.1f}" height="{rows * scale:.1f}"'
    yield f'<rect class="fill-ground" {inside}/><rect class="covered fill-first" {inside}/>'
    lines = "".join(f"M{line * x * scale:.1f} 0V{height:.1f}" for line in range(across + 1))
    lines += "".join(f"M0 {line * y * scale:.1f}H{width:.1f}" for line in range(down + 1))
    yield f'<path class="blocks stroke-ink" d="{lines}"/><rect class="edge stroke-first" {inside}/>'
    if across * down <= _NUMBERED and across <= 20:
        for block_y in range(down):
            for block_x in range(across):
                yield svg.text(block_x * x * scale + 3, block_y * y * scale + 12, f"{block_x},{block_y}")
    yield "</g>"


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
            runtime.launch(cuda.kernel_of("matvec"), on_matrix, on_vector, on_out)
            runtime.copy(out.reshape(n, 1), on_out)
        finally:
            runtime.release()

    return stub


def measured(runtime: cuda.CudaRuntime, size: int, vector: int) -> Iterator[records.Line]:
    jobs = [(shape, design) for shape in shapes(size).items() for design in DESIGNS]
    for (form, (n, l, m)), design in cli.shown(jobs, "exercise 1"):
        a, b = cuda.matrices("uniform", DTYPE, n, l, m)
        seconds = records.spread(cuda.kernel_seconds(runtime, cuda.kernel_of(design), a, b, REPEAT))
        yield {"part": "exercise 1", "kernel": design, "form": form, "n": n, "l": l, "m": m, "seconds": seconds}
    a, b = cuda.matrices("uniform", DTYPE, vector, vector, 1)
    out = np.full(vector, np.nan, DTYPE)
    stub_on(runtime)(out, a, b[:, 0].copy(), vector)
    product_check.refuse_wrong("stub", a, b, out[:, None])
    for kernel in cli.shown(VECTOR_KERNELS, "exercise 2"):
        seconds = records.spread(cuda.kernel_seconds(runtime, cuda.kernel_of(kernel), a, b, REPEAT))
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
            speed = [records.duration(line["seconds"]["median"]), f"{self.gigaflops(form, design):.4g}"]
            launch = _launch(design, line["n"], line["m"])
            rows.append([form, shape, design, launch, f"{threads:,}", *(speed if self.of_gpu else ["right"])])
        yield tables.Table(heads, "llllrrr"[: len(heads)], rows, f"exercise 1, {DTYPE}")
        yield tables.Remarks(list(self._for_and_against()), "for and against")
        rows = [[kernel, f"{line['n']}×{line['n']}", self._of_vector(line)] for kernel, line in self.vectors.items()]
        yield tables.Table(["kernel", "matrix", "outcome"], "lll", rows, "exercise 2, a matrix times a vector")
        yield compared()

    def _of_vector(self, line: records.Line) -> str:
        n, seconds = line["n"], line["seconds"]["median"]
        return f"{records.duration(seconds)}, {ITEM * n * n / seconds / 1e9:.4g} GB/s of the matrix" if self.of_gpu else "right"

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
    launch = launch_of(cuda.kernel_of(design), DTYPE, n, m, EMULATED_CAPABILITY)
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
            draw_launch(options.picture, *options.launch)
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
