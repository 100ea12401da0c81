# SPDX-License-Identifier: MIT
"""Into which panels and k-slabs the operands are divided for the devices, and how many panels are resident on one.

All panels are resident where they fit; where they do not, out_of_core.py chooses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from math import inf

from hybrid.core.problem import Problem, record
from hybrid.core.spans import Span, Topology, pieces
from hybrid.plan.arithmetic import UNIT
from hybrid.plan.grid import Grid, Placement
from hybrid.plan.layout import KERNEL_TILE, Tiling, layout_of
from hybrid.plan.machine_model import H200, MachineModel, forecast
from hybrid.plan.schedule import arrivals

# -------- request
# What a plan is asked for: the product, the ranks, the device, and where the operands lie; and the part of this on which a
# tiling depends.


class OperandLocation(Enum):
    """Where A, B and C lie, in host or device memory, while they are multiplied."""

    NODE_SHARED = "node-shared matrices"  # every rank reads and writes its rows in memory that its node's ranks share
    ROOT_ARRAYS = "the root's arrays"  # private memory of the root, which copies them to and from all devices itself
    ROW_BLOCKS = "row blocks"  # every rank has its own rows of A and B, and keeps its rows of C
    BLOCKS_2D = "2-D blocks"  # every rank has some rows of some columns of A and B, and keeps some of C


@record
class RowBlocks:
    """The rows of A and of B that each rank has before the product, in the order of the ranks."""

    a: tuple[Span, ...]
    b: tuple[Span, ...]


@record
class PlanRequest:
    """All that a plan depends on. A size of 0 lets the plan choose it."""

    problem: Problem
    topology: Topology
    root: int = 0
    device: str = "cpu"  # "cpu", "cuda" or "emulate"
    staged: bool = False  # a CPU, too, copies panels into buffers, as a GPU does
    accumulates: bool = False  # the kernel can add to C, so B may come in k-slabs
    moduli: int = 0  # the most that a product from remainders may need; 0: native arithmetic
    speed: float = 1.0  # of a product from remainders, as is expected, relative to a native one
    panel_rows: int = 0
    panel_columns: int = 0
    slab_rows: int = 0
    device_memory: int = 0  # bytes that each rank may take on its device; 0: as many as it needs
    check: str = "off"  # the product is verified: "on" (by the device that multiplied, where it can), "host" or "off"
    row_blocks: RowBlocks | None = None  # the rows of A and B that the ranks have already; None: equal blocks
    model: MachineModel = H200
    left_out: tuple[int, ...] = ()  # ranks that get no rows of A, where others of their node can take them
    grid: Grid | None = None  # the grid that the nodes form; None: every node multiplies its rows of A by all of B
    blocks_2d: Placement | None = None  # where the operands and C are distributed in two dimensions
    message_bytes: int = 1 << 28  # the most that a rank of a grid receives at a time
    c_leaves: bool = False  # column panels of C go elsewhere as soon as they are complete, as those of a grid's part

    @property
    def copies_to_buffers(self) -> bool:
        """Whether panels are copied into buffers. A GPU always multiplies such copies; a CPU multiplies the matrices in place,
        unless it is told otherwise."""
        return self.staged or self.device != "cpu"

    @property
    def placement(self) -> Placement:
        """What each rank has of A and B before the product, and keeps of C after it: with row blocks its rows of A, else the
        root has all of C."""
        if self.blocks_2d is not None:
            return self.blocks_2d
        n, ranks = self.problem.n, range(self.topology.size)
        of_c = self.rows_of_a if self.row_blocks else tuple(Span(0, n if rank == self.root else 0) for rank in ranks)
        return Placement.of_rows(self.problem, self.rows_of_a, self.rows_of_b, of_c)

    @property
    def rows_of_a(self) -> tuple[Span, ...]:
        """For each rank the rows of A and C that it multiplies."""
        if self.row_blocks:
            return self.row_blocks.a
        idle = self.topology.left_out(self.left_out)
        return self._blocks_without(idle) if idle else self._equal_blocks(self.problem.n)

    @property
    def rows_of_b(self) -> tuple[Span, ...]:
        """For each rank the rows of B that it provides."""
        return self.row_blocks.b if self.row_blocks else self._equal_blocks(self.problem.l)

    def _blocks_without(self, idle: frozenset[int]) -> tuple[Span, ...]:
        """For each rank its rows of A, where the `idle` ones have none. Those of a node are the same as with all of its
        ranks."""
        blocks = {}
        for node, members in enumerate(self.topology.nodes):
            rows, at_work = self.topology.rows_of_node(node, self.problem.n), [rank for rank in members if rank not in idle]
            for rank in members:
                blocks[rank] = rows.part(len(at_work), at_work.index(rank)) if rank in at_work else Span(rows.lo, rows.lo)
        return tuple(blocks[rank] for rank in range(self.topology.size))

    def _equal_blocks(self, rows: int) -> tuple[Span, ...]:
        return tuple(self.topology.rows_of_rank(rank, rows) for rank in range(self.topology.size))


@record
class TilingRequest:
    """All that a tiling depends on. A size of 0 lets the plan choose it."""

    problem: Problem
    rows: int  # in the largest row block
    device: str
    nodes: int = 1
    links: int = 1  # ranks of a node, which copy A and B over links of their own; 0: the operands are on the devices already
    memory: int = 0  # bytes of each device; 0: as many as it takes
    panel_rows: int = 0
    panel_columns: int = 0
    slab_rows: int = 0
    may_use_slabs: bool = False
    c_leaves: bool = False  # column panels of C go to another node as soon as they are complete
    moduli: int = 0
    speed: float = 1.0
    model: MachineModel = H200


# -------- out of core
# The tiling where a device cannot hold both operands. One is stationary: as many of its panels as fit are on the device at a
# time. The other is streamed past them in small panels, in alternating direction.
#
# Of all such tilings that fit, the search takes the one that should take the least time, which is mostly the one with the
# least to copy.

_STEPS = 8  # the search tries parts of the stationary operand that differ by about an eighth


@record
class OutOfCoreTiling:
    """The search, for row blocks of up to `request.rows` rows on devices of `request.memory` bytes."""

    request: TilingRequest

    def choose(self) -> Tiling:
        """The best tiling. Panel sizes that the request asks for are halved where they do not fit; where even the smallest
        panels do not, these are taken."""
        r, model = self.request, self.request.model
        for least_streamed in range(model.least_streamed_panels, 0, -1):
            best, least = None, inf
            for halvings in range(model.least_tile_elements.bit_length()):
                factor = 1 + halvings * model.half_tile_cost
                if least <= factor * (r.rows + r.problem.m):
                    break  # what is halved again cannot take less, even if every row and column is copied only once
                for tiling, streamed in self.candidates(halvings):
                    if streamed >= least_streamed and factor * self._time(tiling) < least:
                        best, least = tiling, factor * self._time(tiling)
            if best:
                return best
        if max(r.panel_rows, r.panel_columns) > 1:
            halved = replace(r, panel_rows=-(-r.panel_rows // 2), panel_columns=-(-r.panel_columns // 2))
            return replace(self, request=halved).choose()
        return Tiling(1, 1, 1, 1)

    def candidates(self, halvings: int) -> Iterator[tuple[Tiling, int]]:
        """Tilings that may fit, each with the number of streamed panels that do. With `halvings` the tiles are halved so many
        times from the best size."""
        for part in _parts(self.request.problem.m):
            yield self._b_stationary(part, halvings)
        for part in _parts(self.request.rows):
            yield self._a_stationary(part, halvings)

    def _b_stationary(self, columns: int, halvings: int) -> tuple[Tiling, int]:
        r = self.request
        width, column_panels = self._stationary_panels(columns, r.panel_columns, self._least_panel_columns)
        stationary = max(1, min(r.problem.m, column_panels * width))
        height = r.panel_rows or _smaller(max(-(-r.model.least_tile_elements // stationary), KERNEL_TILE), halvings)
        height = min(r.rows, height)

        def tiling(row_panels: int) -> Tiling:
            return Tiling(height, width, max(1, row_panels), column_panels, stationary="B", moduli=r.moduli)

        return self._with_most_streamed(stationary, height, r.rows, tiling)

    def _a_stationary(self, rows: int, halvings: int) -> tuple[Tiling, int]:
        r = self.request
        height, row_panels = self._stationary_panels(rows, r.panel_rows, KERNEL_TILE)
        stationary = min(r.rows, row_panels * height)
        width = r.panel_columns or _smaller(
            max(-(-r.model.least_tile_elements // stationary), self._least_panel_columns), halvings
        )
        width = max(1, min(r.problem.m, width))

        def tiling(column_panels: int) -> Tiling:
            return Tiling(height, width, row_panels, max(1, column_panels), stationary="A", moduli=r.moduli)

        return self._with_most_streamed(stationary, width, r.problem.m, tiling)

    @property
    def _least_panel_columns(self) -> int:
        return max(1, self.request.model.streamed_panel_row_bytes // self.request.problem.operand_item_size)

    def _stationary_panels(self, part: int, asked: int, at_least: int) -> tuple[int, int]:
        """The size and the number of the stationary panels, which together are as large as `part`, or a bit larger."""
        size = asked or _in_tiles(-(-part // max(1, min(self.request.model.most_stationary_panels, part // at_least))))
        return size, -(-part // size)

    def _with_most_streamed(
        self, stationary: int, size: int, length: int, tiling_with: Callable[[int], Tiling]
    ) -> tuple[Tiling, int]:
        """The tiling that holds beside `stationary` rows or columns as many streamed panels as fit, and their number.

        Each streamed panel has `size` of the `length` rows or columns of its operand. Not all of them are taken: an operand that
        can be resident as a whole had better be the stationary one.
        """
        r, p = self.request, self.request.problem
        of_streamed = p.operand_bytes(size, p.l) + p.bytes(size, stationary)
        fitting = (r.memory - p.operand_bytes(stationary, p.l)) // of_streamed  # padding left aside
        fitting = max(0, min(fitting, -(-length // size) - 1))
        counts = range(1, fitting + 1)
        fitting = bisect_right(counts, r.memory, key=lambda count: layout_of(p, r.rows, tiling_with(count), r.device).bytes)
        return tiling_with(fitting), fitting

    def _time(self, tiling: Tiling) -> float:
        """The time of a tiling: the larger of the link's and the kernels', where the unit is a row of A or a column of B copied
        at full rate.

        Narrow column panels are copied more slowly, and at each reversal the kernels wait for the first stationary panel.
        Kernels compute whole thread-block tiles, so one that is not full takes as long as a full one.
        """
        p, model = self.request.problem, self.request.model
        rows, columns = self.request.rows, p.m
        a, b = min(rows, tiling.row_panels * tiling.panel_rows), max(1, min(columns, tiling.column_panels * tiling.panel_columns))
        if tiling.stationary == "A":
            reversals, waited_for = -(-rows // a) - 1, tiling.panel_rows
            columns += reversals * (columns - b)
        else:
            reversals, waited_for = -(-columns // b) - 1, tiling.panel_columns
            rows += reversals * (rows - a)
        slowdown = 1 + model.panel_row_overhead_bytes / (tiling.panel_columns * p.operand_item_size)
        copied = rows + columns * slowdown + reversals * waited_for
        computed = self.request.rows * p.m / (model.multiply_adds_per_byte(p.operand_dtype) * p.operand_item_size)
        unused = _tile_excess(self.request.rows, tiling.panel_rows) * _tile_excess(p.m, tiling.panel_columns)
        return max(copied, computed * unused)


def _parts(length: int) -> Iterator[int]:
    """The sizes of the part of an operand that may be stationary at a time: all of it, a half, a third, …"""
    parts = 1
    while parts < length:
        yield min(length, _in_tiles(-(-length // parts)))
        parts += -(-parts // _STEPS)
    yield 1


def _tile_excess(length: int, panel: int) -> float:
    """How many times as much a kernel computes as is wanted, where panels are smaller than a thread-block tile."""
    return max(1.0, min(KERNEL_TILE, length) / panel)


def _in_tiles(size: int) -> int:
    """The size, rounded up to whole thread-block tiles; unchanged where it is less than one."""
    return -(-size // KERNEL_TILE) * KERNEL_TILE if size > KERNEL_TILE else size


def _smaller(size: int, halvings: int) -> int:
    """The size halved so many times, in whole thread-block tiles where it has any."""
    return max(1, _in_tiles(size >> halvings))


def choose_tiling(request: TilingRequest) -> Tiling:
    """The tiling for all ranks. Where not even the smallest panels fit, it has these.

    Products from remainders need panels of whole units, and norms of whole columns and so no k-slabs. Where a tiling has none of
    that, the product is native.
    """
    if request.moduli and not request.slab_rows:
        tiling = _choose_tiling(replace(request, may_use_slabs=False))
        if _has_whole_units(request, tiling):
            return tiling
    return _choose_tiling(replace(request, moduli=0))


def _has_whole_units(r: TilingRequest, tiling: Tiling) -> bool:
    """Whether all panels but the last consist of whole units of rows, or columns."""
    sizes = ((r.rows, tiling.panel_rows), (r.problem.m, tiling.panel_columns))
    return all(panel % UNIT == 0 or length <= panel for length, panel in sizes)


def _choose_tiling(r: TilingRequest) -> Tiling:
    height, width = _panel_rows(r), _panel_columns(r)
    if r.moduli and r.links and r.nodes == 1:
        _, (height, width) = soonest(r)
    height, width = r.panel_rows or height, r.panel_columns or width
    row_panels, column_panels = _count(r.rows, height), _count(r.problem.m, width)
    resident = Tiling(height, width, row_panels, column_panels, rows_first=r.c_leaves, moduli=r.moduli)
    if not r.memory or layout_of(r.problem, r.rows, resident, r.device).bytes <= r.memory:
        return _with_slabs(r, resident) if r.may_use_slabs else resident
    tiling = OutOfCoreTiling(r).choose()
    if not r.may_use_slabs or tiling.stationary != "B" or (r.device == "cpu" and not r.slab_rows):
        return tiling
    slab_rows = r.slab_rows or _least_lines(r, r.model.least_slab_rows, r.problem.operand_bytes(1, tiling.panel_columns))
    return replace(tiling, slab_rows=slab_rows) if slab_rows < r.problem.l else tiling


def _with_slabs(r: TilingRequest, tiling: Tiling) -> Tiling:
    """The tiling with B in k-slabs instead of column panels, where there would be several slabs."""
    model, depth = r.model, r.problem.l
    if not r.slab_rows and (r.device == "cpu" or not r.links or r.panel_columns):
        return tiling
    least = max(model.least_slab_rows, model.least_panel_rows * r.links, depth // model.most_slabs)
    slab_rows = r.slab_rows or _least_lines(r, least, r.problem.operand_bytes(1, r.problem.m))
    if slab_rows >= depth:
        return tiling
    # The interleaved row panels must be high enough to keep the GPU busy while B is copied. But their rows of C are complete,
    # and can be copied back, only after the last slab, and that must not take longer than computing the other rows.
    # `rows_at_once`: the rows of C to which a kernel can add its products with one row of B while the link copies the next one.
    rows_at_once = model.multiply_adds_per_byte(r.problem.operand_dtype) * r.problem.operand_item_size
    busy = model.adding_speed * rows_at_once / max(1, r.links)
    in_time = r.rows * (1 - rows_at_once / depth)
    interleaved = max(1, round(min(busy, in_time) / tiling.panel_rows))
    return replace(tiling, slab_rows=slab_rows, interleaved=interleaved)


def _panel_rows(r: TilingRequest) -> int:
    p, model = r.problem, r.model
    if r.device == "cpu":
        rows = model.cpu_tile_work // max(1, p.l * _panel_columns(r))
        return max(rows, model.least_cpu_panel_rows, -(-r.rows // model.most_cpu_row_panels))
    if not r.links:
        return max(1, r.rows)
    return max(1, min(r.rows, _least_lines(r, model.least_panel_rows, p.operand_bytes(1, p.l) + p.bytes(1, p.m))))


def _panel_columns(r: TilingRequest) -> int:
    p, model = r.problem, r.model
    if r.device == "cpu" and r.nodes == 1:
        return max(1, p.m)  # a CPU reads B where it is
    column_panels = min(model.most_column_panels, max(1, p.operand_bytes(p.l, p.m) // model.least_column_panel_bytes))
    width = max(1, p.m if column_panels == 1 else -(-p.m // column_panels // KERNEL_TILE) * KERNEL_TILE)
    if r.device == "cpu" or not r.links:
        return width
    return max(width, _least_lines(r, model.panel_row_bytes // p.operand_item_size, p.operand_bytes(1, p.l) + p.bytes(1, r.rows)))


@lru_cache(maxsize=64)
def soonest(r: TilingRequest) -> tuple[float, tuple[int, int]]:
    """When a product without k-slabs is complete with the best panels, in the time in which a link copies a byte; and the rows
    and columns of these panels.

    In one panel the rows of B are copied whole, but nothing can be multiplied before all of it is there. High row panels need
    fewer launches, but the last one is copied back after all else.
    """
    p, model, least = r.problem, r.model, _panel_rows(r)

    def copied_out(panel: tuple[int, int]) -> float:
        sizes = zip((r.rows, p.m), panel, strict=True)
        row_panels, column_panels = (tuple(pieces(Span(0, length), size)) for length, size in sizes)
        order = arrivals(row_panels, column_panels, len(row_panels), len(column_panels))
        return forecast(p, order, model, r.speed, r.links, moduli=r.moduli).copied_out

    widths = {max(1, -(-p.m // count // KERNEL_TILE) * KERNEL_TILE) for count in range(1, model.most_column_panels + 1)}
    heights = {min(least * factor, max(1, r.rows)) for factor in (1, 2, 4)}
    panels = [(height, width) for width in sorted(widths, reverse=True) for height in sorted(heights)]
    return min((copied_out(panel), number, panel) for number, panel in enumerate(panels))[::2]


def _least_lines(r: TilingRequest, at_least: int, bytes_of_line: int) -> int:
    """The rows or columns of a panel that has at least so many, and whose copy is long enough for the link: each brings so many
    bytes."""
    return -(-max(at_least, r.model.least_panel_bytes // max(1, bytes_of_line)) // KERNEL_TILE) * KERNEL_TILE


def _count(length: int, size: int) -> int:
    """The number of panels of this size, at least one."""
    return max(1, -(-length // size))
