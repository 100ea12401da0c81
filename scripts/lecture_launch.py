"""The arithmetic of a launch: which blocks cover a matrix, what a tile loads, what a warp touches. No GPU needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from report_table import Table

from hybrid.errors import UsageError

MOST_THREADS = 1024  # of a block, on every GPU
WARP = 32
MOST_BLOCKS = {"x": 2**31 - 1, "y": 65_535}  # of a grid, on every GPU
PIECE_BYTES = 32  # what global memory hands out at least


@dataclass(frozen=True)
class Covering:
    """A rows×columns matrix under blocks of x×y threads, a thread an element."""

    rows: int
    columns: int
    x: int
    y: int

    def __post_init__(self) -> None:
        if self.threads_of_block > MOST_THREADS:
            raise UsageError(f"a block of {self.x}×{self.y} has {self.threads_of_block} threads, and {MOST_THREADS} are the most")

    @property
    def threads_of_block(self) -> int:
        return self.x * self.y

    @property
    def grid(self) -> tuple[int, int]:
        return -(-self.columns // self.x), -(-self.rows // self.y)

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def threads(self) -> int:
        return self.blocks * self.threads_of_block

    @property
    def passing(self) -> int:
        """Threads that the bounds test lets through."""
        return self.rows * self.columns


@dataclass(frozen=True)
class TilePhase:
    """What a block does with one pair of tile×tile tiles in shared memory."""

    tile: int

    @property
    def loads(self) -> int:
        return 2 * self.tile**2

    @property
    def operations(self) -> int:
        """A multiplication and an addition for each thread and step."""
        return self.tile**2 * 2 * self.tile


@dataclass(frozen=True)
class Pieces:
    """Of memory, PIECE_BYTES each, that one instruction of a warp touches."""

    load_a: int
    load_b: int
    store_c: int


def pieces_of_warp(kernel: str, l: int, m: int, item: int) -> Pieces:
    """For a warp of the kernel, away from the edges of C."""
    lanes = range(WARP)
    if kernel == "naive":  # blocks of 16×16: a warp has two rows of them
        of_a, of_b, of_c = (
            (lane // 16 * l for lane in lanes),
            (lane % 16 for lane in lanes),
            (lane // 16 * m + lane % 16 for lane in lanes),
        )
    elif kernel == "row_per_thread":
        of_a, of_b, of_c = (lane * l for lane in lanes), (0 for _ in lanes), (lane * m for lane in lanes)
    elif kernel == "column_per_thread":
        of_a, of_b, of_c = (0 for _ in lanes), (lane for lane in lanes), (lane for lane in lanes)
    else:
        raise LookupError(kernel)
    return Pieces(*(len({place * item // PIECE_BYTES for place in places}) for places in (of_a, of_b, of_c)))


def threads_at_work(kernel: str, n: int, m: int) -> int:
    """Threads that have something to compute."""
    return {"naive": n * m, "row_per_thread": n, "column_per_thread": m}[kernel]


# What the documents say of launches, to be compared with.
LECTURES: tuple[tuple[str, Covering, dict[str, object]], ...] = (
    (
        "exercise 3",
        Covering(150, 300, 16, 32),
        {"threads_of_block": 512, "grid": (19, 5), "blocks": 95, "threads": 48_640, "passing": 45_000},
    ),
    ("figure 2.1", Covering(70, 200, 32, 16), {"threads_of_block": 512, "grid": (7, 5), "blocks": 35}),
    ("100×200 · 200×500", Covering(100, 500, 16, 16), {"passing": 50_000}),
    ("slides, 1024²", Covering(1024, 1024, 16, 16), {"threads_of_block": 256, "grid": (64, 64), "blocks": 4096}),
)
SLIDES_PHASE: tuple[TilePhase, dict[str, object]] = (TilePhase(16), {"loads": 512, "operations": 8192})


def explained(covering: Covering) -> Iterator[str]:
    """Lines that show the way to each number."""
    one = covering
    yield f"C of {one.rows}×{one.columns} under blocks of {one.x}×{one.y} threads (x×y), a thread an element"
    down, across = f"ceil({one.rows} / {one.y})", f"ceil({one.columns} / {one.x})"
    yield from _aligned(
        ("threads a block", f"{one.threads_of_block:,}", f"{one.x} · {one.y}"),
        ("grid", f"{one.grid[0]}×{one.grid[1]}", f"{across} × {down}"),
        ("blocks", f"{one.blocks:,}", ""),
        ("threads", f"{one.threads:,}", f"{one.blocks:,} · {one.threads_of_block:,}"),
        ("pass the bounds test", f"{one.passing:,}", f"{one.rows} · {one.columns}"),
        ("have nothing to do", f"{one.threads - one.passing:,}", ""),
    )
    for side, blocks in zip("xy", one.grid, strict=True):
        if blocks > MOST_BLOCKS[side]:
            yield f"CUDA takes at most {MOST_BLOCKS[side]:,} blocks in {side}: several launches, or several elements a thread"
    if one.x == one.y:
        phase = TilePhase(one.x)
        yield f"with tiles of {one.x}×{one.x} in shared memory, a block and a pair of tiles:"
        yield from _aligned(
            ("loads", f"{phase.loads:,}", f"2 · {one.x}²"),
            ("operations", f"{phase.operations:,}", f"{one.x}² · 2 · {one.x}"),
            ("loads a multiply-add", f"2/{one.x}", "without tiles 2"),
        )


def compared() -> Table:
    """Each number of the documents beside the computed one."""
    rows = []
    for source, computed, said in (*LECTURES, ("slides, tile 16", *SLIDES_PHASE)):
        for name, number in said.items():
            rows.append([source, name.replace("_", " "), _text(number), _text(getattr(computed, name))])
    return Table(["source", "number", "lecture", "computed"], "llrr", rows, "launches")


def _text(number: object) -> str:
    return "×".join(map(str, number)) if isinstance(number, tuple) else f"{number:,}"


def _aligned(*rows: tuple[str, str, str]) -> Iterator[str]:
    for name, number, way in rows:
        yield f"  {name:22}{number:>10}  {way}".rstrip()
