# SPDX-License-Identifier: MIT
"""What a plan is asked for: the product, the ranks, the device, and where the operands lie; and the part of this on which a
tiling depends."""

from __future__ import annotations

from enum import Enum

from hybrid.core.problem import Problem
from hybrid.core.record import record
from hybrid.core.spans import Span, Topology
from hybrid.plan.grid import Grid, Placement
from hybrid.plan.machine_model import H200, MachineModel


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
