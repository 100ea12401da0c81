# SPDX-License-Identifier: MIT
"""The exercises on multidimensional grids: python -m hybrid.lectures pmpp [--launch ROWS COLUMNS X Y]

Exercise 1: a thread for each row of C and one for each column, beside a thread for each element, on a square, a tall and a wide
C of the same work, float32; then what speaks for each, from the numbers. Exercise 2: a matrix times a vector, a thread for each
element. Exercise 3 and the other launches of the documents: --launch shows the arithmetic for any,
and with --picture the blocks over C, both ways.

On a GPU C is 1024×1024 (--size), timed by CUDA events. Without one it is 96×96, on the CPU's CUDA runtime: the products are
checked, and nothing is said of speed.
"""

import argparse
from collections.abc import Iterator, Sequence

from experiments.common import cli, cuda, results
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
    return results.printed([results.Table(["", "", ""], "lrl", rows)])


def compared() -> results.Table:
    """Each number of the documents beside the computed one."""
    rows = []
    for source, computed, said in LECTURES:
        rows += [[source, name, _text(number), _text(computed[name])] for name, number in said.items()]
    return results.Table(["source", "number", "lecture", "computed"], "llrr", rows, "launches")


def _text(number: Number) -> str:
    return "×".join(map(str, number)) if isinstance(number, tuple) else f"{number:,}"


MOST_DRAWN = 2000  # blocks that a picture shows
_NUMBERED = 60  # blocks, of which each has its number
_LONG, _LEFT, _TOP, _BELOW = 640, 64, 70, 60  # of the longer side, and around a grid
_STYLE = """\
.covered { fill-opacity: 0.15 } .edge { fill: none; stroke-width: 2 } .blocks { fill: none; stroke-width: 0.7 }
"""
_HATCHES = (
    '<pattern id="outside" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="stroke-second" d="M0 0V6" stroke-width="2"/></pattern>'
)


def draw_launch(path: str, rows: int, columns: int, x: int, y: int) -> None:
    """Blocks of x×y threads; below them, where x and y differ, the same with x and y exchanged. UsageError for too many."""
    ways = list(dict.fromkeys([(x, y), (y, x)]))
    grids = [covering(rows, columns, *way)["grid"] for way in ways]
    if (most := max(across * down for across, down in grids)) > MOST_DRAWN:  # type: ignore[misc]
        raise UsageError(f"a picture of {most:,} blocks would be black: {MOST_DRAWN:,} are the most")
    sides = [(across * way[0], down * way[1]) for way, (across, down) in zip(ways, grids, strict=True)]  # type: ignore[misc]
    scale = _LONG / max(max(side) for side in sides)
    title, drawn, top = f"C of {rows}×{columns}, a thread for each element", [_HATCHES], 30.0
    drawn.append(svg.text(12, 20, title, more='style="font-weight: 600"'))
    for way, (_, height) in zip(ways, sides, strict=True):
        drawn += [f'<g transform="translate(0 {top:.0f})">', *_grid(rows, columns, *way, scale), "</g>"]
        top += _BELOW + scale * height
    svg.write(path, title, (_LEFT + max(scale * max(width for width, _ in sides) + 36, 400), top + 20), drawn, _STYLE)


def _grid(rows: int, columns: int, x: int, y: int, scale: float) -> Iterator[str]:
    numbers = covering(rows, columns, x, y)
    across, down = numbers["grid"]  # type: ignore[misc]
    counts = f"{across} × {down} = {numbers['blocks']:,} blocks, {numbers['have nothing to do']:,} threads lie outside of C"
    yield svg.text(12, 14, f"blocks of x = {x}, y = {y}: {counts}")
    width, height = across * x * scale, down * y * scale
    yield f'<g transform="translate({_LEFT} {_TOP - 30})">'
    yield svg.text(0, -6, f"column, x, to {columns} of {across * x}", "fill-soft")
    turned = 'text-anchor="end" transform="rotate(-90 -8 0)"'
    yield svg.text(-8, 0, f"row, y, to {rows} of {down * y}", "fill-soft", turned)
    yield f'<rect width="{width:.1f}" height="{height:.1f}" fill="url(#outside)"/>'
    inside = f'width="{columns * scale:.1f}" height="{rows * scale:.1f}"'
    yield f'<rect class="fill-ground" {inside}/><rect class="covered fill-first" {inside}/>'
    lines = "".join(f"M{line * x * scale:.1f} 0V{height:.1f}" for line in range(across + 1))
    lines += "".join(f"M0 {line * y * scale:.1f}H{width:.1f}" for line in range(down + 1))
    yield f'<path class="blocks stroke-ink" d="{lines}"/><rect class="edge stroke-first" {inside}/>'
    if across * down <= _NUMBERED and across <= 20:
        for block in range(across * down):
            at_y, at_x = divmod(block, across)
            yield svg.text(at_x * x * scale + 3, at_y * y * scale + 12, f"{at_x},{at_y}")
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


def shapes(size: int) -> dict[str, tuple[int, int, int]]:
    """n, l, m of the same work: n threads or m threads, many or few."""
    quarter = size // 4
    sides = (size, size, size), (SLENDER * size, quarter, quarter), (quarter, quarter, SLENDER * size)
    return dict(zip(FORMS, sides, strict=True))


def measured(options: argparse.Namespace) -> Iterator[results.Line]:
    runtime = cuda.runtime_for(options.device)
    size = options.size or (QUICK if options.quick else SIZES)[runtime.device]
    if size % 4:
        raise UsageError(f"--size {size}: a multiple of 4, for the tall C and the wide one")
    for shape in shapes(size).values():
        cli.refuse_too_large(*shape)
    jobs = [(shape, design) for shape in shapes(size).items() for design in DESIGNS]
    for (form, (n, l, m)), design in cli.shown(jobs, "exercise 1"):
        a, b = cuda.matrices("uniform", DTYPE, n, l, m)
        seconds = results.spread(cuda.kernel_seconds(runtime, cuda.kernel_of(design), a, b, REPEAT))
        about = {**runtime.about, "part": "exercise 1", "kernel": design, "form": form}
        yield {**about, "n": n, "l": l, "m": m, "seconds": seconds}
    n = VECTOR[runtime.device] // (4 if options.quick else 1)
    a, b = cuda.matrices("uniform", DTYPE, n, n, 1)
    for kernel in cli.shown(VECTOR_KERNELS, "exercise 2"):
        seconds = results.spread(cuda.kernel_seconds(runtime, cuda.kernel_of(kernel), a, b, REPEAT))
        yield {**runtime.about, "part": "exercise 2", "kernel": kernel, "n": n, "seconds": seconds}


class Results(results.Results):
    """The last line of each kernel and shape."""

    command, again = "lecture_pmpp", "python -m hybrid.lectures pmpp"

    def __init__(self, lines: Sequence[results.Line]) -> None:
        super().__init__(lines)
        self.designs = {(line["form"], line["kernel"]): line for line in lines if line["part"] == "exercise 1"}
        self.vectors = {line["kernel"]: line for line in lines if line["part"] == "exercise 2"}
        self.forms = list(dict.fromkeys(form for form, _ in self.designs))

    def gigaflops(self, form: str, design: str) -> float:
        line = self.designs[form, design]
        return 2 * line["n"] * line["l"] * line["m"] / line["seconds"]["median"] / 1e9

    def blocks(self) -> Iterator[results.Block]:
        heads = ["C", "n×l · l×m", "kernel", "launch", "threads", *(["time", "GF/s"] if self.of_gpu else ["product"])]
        rows = []
        for (form, design), line in self.designs.items():
            shape = f"{line['n']}×{line['l']} · {line['l']}×{line['m']}"
            threads = threads_at_work(design, line["n"], line["m"])
            speed = [results.duration(line["seconds"]["median"]), f"{self.gigaflops(form, design):.4g}"]
            launch = _launch(design, line["n"], line["m"])
            rows.append([form, shape, design, launch, f"{threads:,}", *(speed if self.of_gpu else ["right"])])
        yield results.Table(heads, "llllrrr"[: len(heads)], rows, f"exercise 1, {DTYPE}")
        yield results.Remarks(list(self._for_and_against()), "for and against")
        rows = []
        for kernel, line in self.vectors.items():
            n, seconds = line["n"], line["seconds"]["median"]
            speed = f"{results.duration(seconds)}, {ITEM * n * n / seconds / 1e9:.4g} GB/s of the matrix"
            rows.append([kernel, f"{n}×{n}", speed if self.of_gpu else "right"])
        yield results.Table(["kernel", "matrix", "outcome"], "lll", rows, "exercise 2, a matrix times a vector")
        yield compared()

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


def _launch(design: str, n: int, m: int) -> str:
    """Grid and block, as they stand between <<< and >>>; sides of 1 are left out, as dim3 allows."""
    launch = launch_of(cuda.kernel_of(design), DTYPE, n, m, EMULATED_CAPABILITY)
    grid, block = (", ".join(map(str, side if side[1] > 1 else side[:1])) for side in (launch.grid, launch.block))
    return f"grid({grid}), block({block})"


def work(options: argparse.Namespace) -> int:
    if options.picture and not options.launch:
        raise UsageError("--picture draws the blocks of --launch")
    if options.launch:
        print(*explained(*options.launch), sep="\n")
        if options.picture:
            draw_launch(options.picture, *options.launch)
        return 0
    return cli.present(options, Results, measured)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.parser_for(__doc__)
    parser.add_argument("--size", type=cli.at_least_1, metavar="N", help="rows and columns of the square C")
    launch = ("ROWS", "COLUMNS", "X", "Y")
    parser.add_argument("--launch", nargs=4, type=cli.at_least_1, metavar=launch, help="only the arithmetic: X×Y threads a block")
    parser.add_argument("--picture", metavar="FILE.svg", help="with --launch: draw the blocks over C")
    cli.add_lines(parser, Results)
    return cli.command(parser, work, arguments)
