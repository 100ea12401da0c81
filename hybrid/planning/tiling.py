# SPDX-License-Identifier: MIT
"""The request for a plan, the choice of panels and k-slabs for H2D copies, and a simulation of a product with them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from functools import cached_property, lru_cache
from itertools import product
from operator import itemgetter

from hybrid.core.problem import Problem, Span, Topology, pieces, record
from hybrid.planning.arithmetic import UNIT
from hybrid.planning.grid import Grid, Placement
from hybrid.planning.machine_model import H200, MachineModel
from hybrid.planning.schedule import KERNEL_TILE, Arrival, Tiling, arrivals, layout_of, memory_for_check

ONE_RANK = Topology(((0,),))


class OperandLocation(Enum):
    """The location of A, B and C during the multiplication."""

    NODE_SHARED = "node-shared matrices"  # every rank accesses its rows in memory that its node's ranks share
    ROOT_ARRAYS = "the root's arrays"  # private memory of the root, which makes the copies of all devices
    ROW_BLOCKS = "row blocks"  # every rank has its own rows of A and B, and keeps its rows of C
    BLOCKS_2D = "2-D blocks"  # every rank has blocks of A and B, and keeps a block of C


@record
class PlanRequest:
    """All inputs of a plan. The plan chooses sizes that are 0.

    Callers of `decide` set the fields before `device`; `decide` fills in the rest from the machine and the settings.
    """

    problem: Problem
    topology: Topology = ONE_RANK
    root: int = 0
    operands: OperandLocation = OperandLocation.NODE_SHARED
    placed: Placement | None = None  # of row blocks or 2-D blocks
    bytes_there: int = 0  # bytes of the matrices that the root holds already
    besides: tuple[int, ...] = ()  # each rank's host memory beside the matrices
    besides_on_gpu: tuple[int, ...] = ()  # each rank's GPU memory beside the matrices, if GPUs multiply
    on_gpus: bool = False  # every rank's rows of A and B are on its GPU
    device: str = "cpu"  # "cpu", "cuda" or "emulate"
    staged: bool = False  # a CPU also copies panels into buffers, like a GPU
    accumulates: bool = False  # the kernel can accumulate into C, so B may come in k-slabs
    moduli: int = 0  # the most that a product from remainders may need; 0: native arithmetic
    speed: float = 1.0  # expected kernel speed, relative to the model's native kernels
    panel_rows: int = 0
    panel_columns: int = 0
    slab_rows: int = 0
    device_memory: int = 0  # limit of each rank's device memory in bytes; 0: none
    check: str = "off"  # verification: "on" or "full" (by the device that multiplied, if it can), "host" or "off"
    model: MachineModel = H200
    grid: Grid | None = None  # the grid that the nodes form; None: every node multiplies its rows of A by all of B
    message_bytes: int = 1 << 28  # largest message to a rank on a grid
    c_leaves: bool = False  # column panels of C leave as soon as they are complete, as on a grid

    @property
    def converted(self) -> PlanRequest:
        """The same product in float32, to which the root converts 16-bit operands."""
        p = self.problem
        there = self.bytes_there - p.operand_bytes(p.n, p.l) - p.operand_bytes(p.l, p.m)
        return replace(self, problem=replace(p, short_operands=""), bytes_there=max(0, there))

    @property
    def row_blocks(self) -> bool:
        return self.operands is OperandLocation.ROW_BLOCKS

    @property
    def copies_to_buffers(self) -> bool:
        """Whether panels are copied into device buffers; a CPU multiplies in place unless `staged`."""
        return self.staged or self.device != "cpu"

    @property
    def placement(self) -> Placement:
        """Each rank's parts of A and B before the product, and of C after it; by default the root keeps all of C."""
        if self.placed is not None:
            return self.placed
        at_root = (Span(0, self.problem.n if rank == self.root else 0) for rank in range(self.topology.size))
        return Placement.of_rows(self.problem, self.rows_of_a, self.rows_of_b, tuple(at_root))

    @cached_property
    def rows_of_a(self) -> tuple[Span, ...]:
        """Each rank's rows of A and C for the multiplication."""
        if self.row_blocks:
            return tuple(part.rows[0] for part in self.placement.a)
        return tuple(self.topology.rows_of_rank(rank, self.problem.n) for rank in range(self.topology.size))

    @property
    def rows_of_b(self) -> tuple[Span, ...]:
        """The rows of B that each rank provides."""
        if self.row_blocks:
            return tuple(part.rows[0] for part in self.placement.b)
        return tuple(self.topology.rows_of_rank(rank, self.problem.l) for rank in range(self.topology.size))

    @cached_property
    def rows(self) -> int:
        """The rows of the tallest row block."""
        return max(map(len, self.rows_of_a))

    @property
    def links(self) -> int:
        """The number of ranks of a node, each with its own link for A and B; 0: the operands are already on the devices."""
        return 0 if self.row_blocks else max(map(len, self.topology.nodes))

    def choose_tiling(self) -> Tiling:
        """The tiling for all ranks; the smallest panels if nothing fits.

        Remainders need panels of whole units, and norms of whole columns and therefore no k-slabs; otherwise products are native.
        """
        if self.moduli and not self.slab_rows:
            tiling = self._tiling(slabs=False)
            sizes = ((self.rows, tiling.panel_rows), (self.problem.m, tiling.panel_columns))
            units = UNIT, UNIT * (1 + self.problem.is_complex)
            if all(panel % unit == 0 or length <= panel for unit, (length, panel) in zip(units, sizes, strict=True)):
                return tiling
        slabs = (
            self.copies_to_buffers
            and not self.problem.symmetric
            and self.accumulates
            and len(self.topology.nodes) == 1
            and not self.row_blocks
        )
        return replace(self, moduli=0)._tiling(slabs=slabs)

    def _tiling(self, *, slabs: bool) -> Tiling:
        p, nodes = self.problem, len(self.topology.nodes)
        height, width = _panel_rows(self), _panel_columns(self)
        if self.moduli and self.links and nodes == 1:
            _, (height, width) = soonest(self)
        if self.row_blocks and self.topology.size == 1 and not self.device_memory:
            width = max(1, p.m)  # B need not arrive in pieces
        height, width = self.panel_rows or height, self.panel_columns or width
        if p.symmetric and self.copies_to_buffers:
            # B's column panels are transposes of A's row panels. On an H200, float32 at 8000 from remainders took 24.6 ms with
            # panels of 512 rows, 14.3 with 1024 and 10.5 with 2048; native float64 took 21.2, 25.3 and 25.9.
            least = _panel_rows(self) if self.links else 2 * self.model.least_panel_rows
            height = width = self.panel_rows or least * (4 if self.moduli and self.links else 1)
        row_panels, column_panels = max(1, -(-self.rows // height)), max(1, -(-p.m // width))
        if self.device == "cpu":  # panels of equal size; on a GPU all but the last are whole tiles
            height, width = max(1, -(-self.rows // row_panels)), max(1, -(-p.m // column_panels))
        rows_first = self.c_leaves or (nodes > 1 and not self.row_blocks)
        resident = Tiling(height, width, row_panels, column_panels, rows_first=rows_first, moduli=self.moduli)
        memory = self.device_memory if self.copies_to_buffers else 0
        if memory and self.check in ("on", "full"):
            memory -= memory_for_check(p, self.rows, memory)
        if memory and layout_of(p, self.rows, resident, self.device).bytes > memory:
            return _out_of_core(self, memory)
        return _with_slabs(self, resident) if slabs else resident


def _with_slabs(request: PlanRequest, tiling: Tiling) -> Tiling:
    """The tiling with B in k-slabs instead of column panels, if there are several slabs."""
    model, depth = request.model, request.problem.l
    if not request.slab_rows and (request.device == "cpu" or request.panel_columns):
        return tiling
    least = max(model.least_slab_rows, model.least_panel_rows * request.links, depth // model.most_slabs)
    slab_rows = request.slab_rows or _least_lines(request, least, request.problem.operand_bytes(1, request.problem.m))
    if slab_rows >= depth:
        return tiling
    # The interleaved row panels must keep the GPU busy while B is copied. Their rows of C return only after the last slab, which
    # must not take longer than computing the other rows. `rows_at_once`: rows of C that a kernel updates with one row of B while
    # the link copies the next one.
    rows_at_once = model.multiply_adds_per_byte(request.problem.operand_dtype) * request.problem.operand_item_size
    busy = model.adding_speed * rows_at_once / request.links
    in_time = request.rows * (1 - rows_at_once / depth)
    interleaved = max(1, round(min(busy, in_time) / tiling.panel_rows))
    return replace(tiling, slab_rows=slab_rows, interleaved=interleaved)


def _panel_rows(request: PlanRequest) -> int:
    p, model = request.problem, request.model
    if request.device == "cpu":
        rows = model.cpu_tile_work // max(1, p.l * _panel_columns(request))
        return max(rows, model.least_cpu_panel_rows, -(-request.rows // model.most_cpu_row_panels))
    if not request.links:
        return max(1, request.rows)
    return max(1, min(request.rows, _least_lines(request, model.least_panel_rows, p.operand_bytes(1, p.l) + p.bytes(1, p.m))))


def _panel_columns(request: PlanRequest) -> int:
    p, model = request.problem, request.model
    if request.device == "cpu" and len(request.topology.nodes) == 1:
        return max(1, p.m)  # a CPU reads B in place
    column_panels = min(model.most_column_panels, max(1, p.operand_bytes(p.l, p.m) // model.least_column_panel_bytes))
    width = max(1, p.m if column_panels == 1 else -(-p.m // column_panels // KERNEL_TILE) * KERNEL_TILE)
    if request.device == "cpu" or not request.links:
        return width
    # Rows of this length are copied at 4/5 of the link's rate.
    least = 4 * model.panel_row_overhead_bytes // p.operand_item_size
    return max(width, _least_lines(request, least, p.operand_bytes(1, p.l) + p.bytes(1, request.rows)))


def _least_lines(request: PlanRequest, at_least: int, bytes_of_line: int) -> int:
    """The rows or columns of a panel: `at_least`, and enough lines of `bytes_of_line` bytes for the link's full rate."""
    return -(-max(at_least, request.model.least_panel_bytes // max(1, bytes_of_line)) // KERNEL_TILE) * KERNEL_TILE


def _out_of_core(request: PlanRequest, memory: int) -> Tiling:
    """The fastest tiling for devices with this much memory, usually the one with the least to copy.

    It has as many streamed panels as the model wants, or the most that fit. Requested panel sizes are halved until they fit; if
    nothing fits, panels have one line.
    """
    wanted = request.model.least_streamed_panels
    most, least_time, best = 0, 0.0, Tiling(1, 1, 1, 1)
    for halvings in range(request.model.least_tile_elements.bit_length()):
        factor = 1 + halvings * request.model.half_tile_cost
        if most == wanted and least_time <= factor * (request.rows + request.problem.m):
            break  # further halving cannot be faster, even if every row and column is copied only once
        for stationary, length in (("B", request.problem.m), ("A", request.rows)):
            for part in _parts(length):
                tiling, fitting = _candidate(request, memory, stationary, part, halvings)
                streamed, time = min(fitting, wanted), factor * _time(request, tiling)
                if streamed > most or (streamed == most > 0 and time < least_time):
                    most, least_time, best = streamed, time, tiling
    if not most and max(request.panel_rows, request.panel_columns) > 1:
        height, width = -(-request.panel_rows // 2), -(-request.panel_columns // 2)
        return _out_of_core(replace(request, panel_rows=height, panel_columns=width), memory)
    return best


def _parts(length: int) -> Iterator[int]:
    """Candidates for the resident lines of a stationary operand: all, a half, a third, … then about 1/8 fewer each."""
    parts = 1
    while parts < length:
        yield min(length, _in_tiles(-(-length // parts)))
        parts += -(-parts // 8)
    yield 1


def _candidate(request: PlanRequest, memory: int, stationary: str, part: int, halvings: int) -> tuple[Tiling, int]:
    """A tiling with about `part` resident lines of the stationary operand, and the number of streamed panels that fit.

    Tiles are halved `halvings` times from the best size. At least one streamed panel is not resident: an operand that fits
    completely should be the stationary one.
    """
    p, model = request.problem, request.model
    of_a = (request.rows, request.panel_rows, KERNEL_TILE)
    # Panels that are copied repeatedly have longer rows than resident ones, copied at 6/7 of the link's rate.
    of_b = (p.m, request.panel_columns, max(1, 6 * model.panel_row_overhead_bytes // p.operand_item_size))
    (length, asked, at_least), (other, other_asked, other_least) = (of_a, of_b) if stationary == "A" else (of_b, of_a)
    size = asked or _in_tiles(-(-part // max(1, min(model.most_stationary_panels, part // at_least))))
    panels = -(-part // size)
    held = max(1, min(length, panels * size))
    best = max(-(-model.least_tile_elements // held), other_least)
    streamed = max(1, min(other, other_asked or max(1, _in_tiles(best >> halvings))))

    def tiling(streamed_panels: int) -> Tiling:
        count = max(1, streamed_panels)
        if stationary == "A":
            return Tiling(size, streamed, panels, count, stationary="A", moduli=request.moduli)
        return Tiling(streamed, size, count, panels, stationary="B", moduli=request.moduli)

    of_streamed = p.operand_bytes(streamed, p.l) + p.bytes(streamed, held)
    fitting = (memory - p.operand_bytes(held, p.l)) // of_streamed  # without padding
    counts = range(1, max(0, min(fitting, -(-other // streamed) - 1)) + 1)
    fitting = bisect_right(counts, memory, key=lambda count: layout_of(p, request.rows, tiling(count), request.device).bytes)
    return tiling(fitting), fitting


def _time(request: PlanRequest, tiling: Tiling) -> float:
    """The time of a tiling: the longer of the link's and the kernels'. Unit: one row of A or column of B copied at full rate.

    Narrow column panels are copied more slowly, and at each reversal the kernels wait for the first stationary panel. A partial
    thread-block tile takes as long as a full one.
    """
    p, model, rows, columns = request.problem, request.model, request.rows, request.problem.m
    a, b = min(rows, tiling.row_panels * tiling.panel_rows), max(1, min(columns, tiling.column_panels * tiling.panel_columns))
    if tiling.stationary == "A":
        reversals, waited_for = -(-rows // a) - 1, tiling.panel_rows
        columns += reversals * (columns - b)
    else:
        reversals, waited_for = -(-columns // b) - 1, tiling.panel_columns
        rows += reversals * (rows - a)
    slowdown = 1 + model.panel_row_overhead_bytes / (tiling.panel_columns * p.operand_item_size)
    copied = rows + columns * slowdown + reversals * waited_for
    computed = request.rows * p.m / (model.multiply_adds_per_byte(p.operand_dtype) * p.operand_item_size)
    for length, panel in ((request.rows, tiling.panel_rows), (p.m, tiling.panel_columns)):
        computed *= max(1.0, min(KERNEL_TILE, length) / panel)
    return max(copied, computed)


def _in_tiles(size: int) -> int:
    """The size rounded up to whole thread-block tiles; unchanged below one tile."""
    return -(-size // KERNEL_TILE) * KERNEL_TILE if size > KERNEL_TILE else size


# Launch time of a tile's kernels, in bytes that the link copies meanwhile: 0.02 ms natively, estimated; 0.2 ms from remainders,
# which also measure panels (float32 at 4000 on an H200: panels of 1024 rows are better than those of 640).
_NATIVE_LAUNCH_BYTES, _MODULAR_LAUNCH_BYTES = 1 << 20, 10 << 20


def forecast(
    problem: Problem, order: Iterable[Arrival], model: MachineModel, speed: float, links: int = 1, *, moduli: int = 0
) -> tuple[float, float, float]:
    """Times at which the last panel is copied in, the last tile is multiplied, and the last tile is copied out. Unit: the link's
    time for a byte. Simulates the arrivals in order on a GPU that overlaps H2D copies, kernels and D2H copies.

    `speed`: of the kernels, relative to the model's native kernels. `links`: the number of links that divide B; of a slab, the
    first link's rows count.
    """
    rate = model.multiply_adds_per_byte(problem.operand_dtype) * speed
    launching = _MODULAR_LAUNCH_BYTES if moduli else _NATIVE_LAUNCH_BYTES
    copied_in = multiplied = copied_out = 0.0
    for arrival in order:
        lines = len(arrival.span)
        if arrival.operand == "A":
            copied_in += problem.operand_bytes(lines, problem.l)
        else:
            rows = len(arrival.slab[0]) if arrival.slab else problem.l / links
            gaps = 0 if lines == problem.m else 2 * model.panel_row_overhead_bytes  # twice, while kernels and D2H copies run
            copied_in += rows * (problem.operand_bytes(1, lines) + gaps)
        for tile in arrival.releases:
            elements, depth = len(tile.rows) * len(tile.columns), problem.l if tile.inner is None else len(tile.inner)
            adding = model.adding_speed if tile.adds else 1.0
            multiplied = max(multiplied, copied_in) + launching + elements * depth / (rate * adding)
            if tile.completes:
                gaps = 0 if len(tile.columns) == problem.m else 2 * model.panel_row_overhead_bytes  # twice, as measured
                copied_out = max(copied_out, multiplied) + elements * problem.item_size + len(tile.rows) * gaps
    return copied_in, multiplied, copied_out


@lru_cache(maxsize=64)
def soonest(request: PlanRequest) -> tuple[float, tuple[int, int]]:
    """The simulated time of a product with the best panels and no k-slabs, in units of the link's time for a byte; and the rows
    and columns of these panels.

    A single column panel is copied fastest, but delays the first tile until all of B is loaded. Taller row panels need fewer
    launches, but lengthen the last D2H copy.
    """
    p, model, least = request.problem, request.model, _panel_rows(request)
    tile = KERNEL_TILE * (1 + p.is_complex)  # both columns of a complex number
    widths = {max(1, -(-p.m // count // tile) * tile) for count in range(1, model.most_column_panels + 1)}
    heights = {min(least * factor, max(1, request.rows)) for factor in (1, 2, 4)}
    found = []
    for width, height in product(sorted(widths, reverse=True), sorted(heights)):
        row_panels, column_panels = [*pieces(Span(0, request.rows), height)], [*pieces(Span(0, p.m), width)]
        order = arrivals(row_panels, column_panels, Tiling(height, width, len(row_panels), len(column_panels)))
        found.append((forecast(p, order, model, request.speed, request.links, moduli=request.moduli)[-1], (height, width)))
    return min(found, key=itemgetter(0))
