# SPDX-License-Identifier: MIT
"""The arithmetic of a launch: which blocks cover a matrix, what a tile loads, what a warp touches. No GPU needed."""

from collections.abc import Iterator

from experiments.common.tables import Table, printed
from hybrid.errors import UsageError

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
