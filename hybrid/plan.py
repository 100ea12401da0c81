"""The plan of one product as plain numbers: who owns which rows, in which order they arrive, what memory that takes.

Nothing here touches MPI, CUDA or NumPy: a plan can be made, printed and tested for machines one does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hybrid.errors import UsageError
from hybrid.partition import Span, Topology, block, even_pieces, pieces

ITEM_SIZES = {"float32": 4, "float64": 8}
PROCESS_BYTES = 96 << 20  # what Python, NumPy, MPI and BLAS take on a rank beside the matrices
STRIP_WORK = 500_000_000_000  # multiply-adds of one strip on a CPU: progress shows now and then, and BLAS packs B seldom
MOST_STRIPS = 512
PANEL_BYTES = 32 << 20  # on a GPU, smaller panels lose more in the kernel than their overlap wins
MOST_PANELS = 8
TILE = 128  # panels and chunks for a GPU are multiples of it where they can be: kernels work in such tiles
WIDEST_COPY = 16  # bytes; rows of a GPU's buffers begin at multiples of it
MOST_GROUPS, GROUP_COLUMNS = 16, 512  # of the check: fewer columns in a sum show smaller errors, and take more memory


@dataclass(frozen=True)
class Problem:
    """C (n×m) = A (n×l) · B (l×m)."""

    n: int
    l: int
    m: int
    dtype: str = "float64"

    def __post_init__(self) -> None:
        for name, size in (("n", self.n), ("l", self.l), ("m", self.m)):
            if size < 0:
                raise UsageError(f"{name} must not be negative, not {size}")
        if self.dtype not in ITEM_SIZES:
            raise UsageError(f"dtype {self.dtype} cannot be multiplied here: float32 and float64 can")

    @property
    def item_size(self) -> int:
        return ITEM_SIZES[self.dtype]

    @property
    def operations(self) -> int:
        """One multiplication and one addition for each of n·l·m."""
        return 2 * self.n * self.l * self.m

    def bytes(self, rows: int, columns: int) -> int:
        return rows * columns * self.item_size

    @property
    def bytes_of_matrices(self) -> int:
        return self.bytes(self.n, self.l) + self.bytes(self.l, self.m) + self.bytes(self.n, self.m)

    def __str__(self) -> str:
        return f"{self.n}×{self.l} · {self.l}×{self.m} {self.dtype}"


@dataclass(frozen=True)
class Strip:
    """A part of C that can be computed: rows counted within the rank's block, and columns."""

    rows: Span
    columns: Span


@dataclass(frozen=True)
class Arrival:
    """A chunk of A (rows within the rank's block) or a panel of B (columns), and the strip of C it releases, if any."""

    operand: str  # "A" or "B"
    span: Span
    releases: Strip | None


def padded(columns: int, item_size: int) -> int:
    """The width of a GPU's buffer that holds so many columns."""
    return _multiple(columns, WIDEST_COPY // item_size)


def column_groups(columns: int) -> int:
    """How many groups of columns the check sums apart."""
    return min(MOST_GROUPS, max(1, -(-columns // GROUP_COLUMNS)))


def arrivals(chunks: tuple[Span, ...], panels: tuple[Span, ...]) -> Iterator[Arrival]:
    """Chunks and panels in turn. A new chunk multiplies all panels already there, a new panel all chunks."""
    a = b = 0
    while a < len(chunks) or b < len(panels):
        # Whichever operand is behind, by the share of it that has arrived, comes next.
        if b == len(panels) or (a < len(chunks) and a * len(panels) <= b * len(chunks)):
            chunk = chunks[a]
            a += 1
            yield Arrival("A", chunk, Strip(chunk, Span(panels[0].lo, panels[b - 1].hi)) if b else None)
        else:
            panel = panels[b]
            b += 1
            yield Arrival("B", panel, Strip(Span(chunks[0].lo, chunks[a - 1].hi), panel) if a else None)


@dataclass(frozen=True)
class Share:
    """One rank's part of the product."""

    rank: int
    node: int
    rows: Span  # of A and C: the row-block it multiplies
    b_rows: Span  # of B: the rows it provides
    chunks: tuple[Span, ...]  # of its row-block, counted within it
    panels: tuple[Span, ...]  # of B's columns

    def arrivals(self) -> Iterator[Arrival]:
        return arrivals(self.chunks, self.panels)


@dataclass(frozen=True)
class Plan:
    """Who does what, for all ranks."""

    problem: Problem
    topology: Topology
    root: int
    device: str  # "cpu", "cuda" or "emulate"
    staged: bool  # chunks and panels are copied into buffers of the device
    check: bool  # the product will be verified
    shares: tuple[Share, ...]

    @property
    def root_node(self) -> int:
        return self.topology.node_of(self.root)

    def a_rows_on(self, node: int) -> Span:
        return self.topology.rows_of_node(node, self.problem.n)

    def c_rows_on(self, node: int) -> Span:
        """All of C on the root's node, where it ends; elsewhere the node's own rows."""
        return Span(0, self.problem.n) if node == self.root_node else self.a_rows_on(node)

    def c_rows_at_the_end(self, rank: int) -> Span:
        """Of the gathered C, the rows this rank checks and writes: a block for each rank of the root's node."""
        members = self.topology.nodes[self.root_node]
        return block(self.problem.n, len(members), members.index(rank)) if rank in members else Span(0, 0)

    def b_rows_from(self, node: int) -> Span:
        """The rows of B that the ranks of this node provide."""
        return self.topology.rows_of_node(node, self.problem.l)

    def bytes_of_windows(self, node: int) -> int:
        """The matrices a node's ranks share."""
        p = self.problem
        return p.bytes(len(self.a_rows_on(node)), p.l) + p.bytes(p.l, p.m) + p.bytes(len(self.c_rows_on(node)), p.m)

    def bytes_of_buffers(self, rank: int) -> int:
        """What a rank's device holds of its own: its row-block, all of B and its part of C; nothing where it works in place."""
        if not self.staged:
            return 0
        p, rows = self.problem, len(self.shares[rank].rows)
        l, m = (p.l, p.m) if self.device == "cpu" else (padded(p.l, p.item_size), padded(p.m, p.item_size))
        return p.bytes(rows, l) + p.bytes(p.l, m) + p.bytes(rows, m) if rows else 0

    def bytes_of_check(self, rank: int) -> int:
        """What the check keeps: two numbers for each row of B and group of columns, three for each row it compares."""
        if not self.check:
            return 0
        p, groups, alone = self.problem, column_groups(self.problem.m), self.topology.size == 1
        # Between ranks these numbers exist several times: as made, as sent, as received, in order.
        of_b = 2 * groups * p.l * (3 if alone else 5)
        rows = len(self.shares[rank].rows) if len(self.topology.nodes) == 1 else 4 * p.n
        return 8 * (of_b + 3 * groups * rows)

    def bytes_on_rank(self, rank: int) -> int:
        """Private host memory of a rank."""
        buffers = 0 if self.device == "cuda" else self.bytes_of_buffers(rank)
        return PROCESS_BYTES + buffers + self.bytes_of_check(rank)

    def bytes_on_node(self, node: int) -> int:
        return self.bytes_of_windows(node) + sum(self.bytes_on_rank(rank) for rank in self.topology.nodes[node])

    def bytes_on_gpu(self, rank: int) -> int:
        return self.bytes_of_buffers(rank) if self.device == "cuda" else 0


def make_plan(
    problem: Problem,
    topology: Topology,
    *,
    root: int = 0,
    device: str = "cpu",
    staged: bool = False,
    chunk_rows: int = 0,
    panel_columns: int = 0,
    check: bool = False,
) -> Plan:
    """Cut a product into row-blocks, chunks and panels. Zero for a size lets the plan choose it."""
    staged = staged or device != "cpu"
    shares = []
    for rank in range(topology.size):
        rows = topology.rows_of_rank(rank, problem.n)
        shares.append(
            Share(
                rank=rank,
                node=topology.node_of(rank),
                rows=rows,
                b_rows=topology.rows_of_rank(rank, problem.l),
                chunks=_cut(len(rows), device, chunk_rows, _chunk_rows(problem, len(rows), device, topology.size)),
                panels=_cut(problem.m, device, panel_columns, _panel_columns(problem, device)),
            )
        )
    return Plan(problem, topology, root, device, staged, check, tuple(shares))


def _cut(length: int, device: str, asked: int, chosen: int) -> tuple[Span, ...]:
    """Pieces of what was asked for, or else of what suits: equal ones, on a GPU whole tiles."""
    whole = Span(0, length)
    return tuple(pieces(whole, max(1, chosen))) if device != "cpu" and not asked else even_pieces(whole, asked or chosen)


def _chunk_rows(problem: Problem, rows: int, device: str, ranks: int) -> int:
    if device != "cpu":
        # One GPU: a second chunk only makes the kernel's strips smaller. Several: B takes longer than a chunk to arrive.
        return rows if ranks == 1 else _multiple(-(-rows // 2), TILE)
    return max(1, STRIP_WORK // max(1, problem.l * problem.m), -(-rows // MOST_STRIPS))


def _panel_columns(problem: Problem, device: str) -> int:
    if device == "cpu":
        return problem.m
    panels = min(MOST_PANELS, max(1, problem.bytes(problem.l, problem.m) // PANEL_BYTES))
    return _multiple(-(-problem.m // panels), TILE) if panels > 1 else problem.m


def _multiple(size: int, of: int) -> int:
    return -(-size // of) * of
