# SPDX-License-Identifier: MIT
"""The plan of one product as plain numbers: which rank has which rows, in which order they arrive, and what memory that takes.

Nothing here touches MPI, CUDA or NumPy: a plan can be made, printed and tested for machines that one does not have.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from hybrid.core.problem import Problem
from hybrid.core.record import record
from hybrid.core.spans import Span, Topology, block
from hybrid.errors import UsageError
from hybrid.plan.buffer_layout import layout_of
from hybrid.plan.check_layout import GROUP_COLUMNS, NUMBERS_A_ROW, most_bytes_of_check
from hybrid.plan.gather_layout import bytes_of_slots
from hybrid.plan.grid_layout import GridLayout
from hybrid.plan.rank_share import RankShare
from hybrid.plan.rectangles import Rectangle
from hybrid.plan.request import OperandLocation

PROCESS_BYTES = 96 << 20  # what Python, NumPy, MPI and BLAS take on a rank beside the matrices
MOST_PIECES = 1 << 21  # panels that one rank loads; more take longer to schedule than to multiply
COLUMNS_AT_ONCE = 128 * GROUP_COLUMNS  # columns of B that the check on the host sums before it goes to the next ones
GROUPS_AT_ONCE = 16  # whose sums it multiplies by A together, at most


@record
class Plan:
    """What each rank does, for all ranks."""

    problem: Problem
    topology: Topology
    root: int
    device: str  # "cpu", "cuda" or "emulate"
    staged: bool  # panels are copied into buffers of the device
    check: str  # how the product will be verified: "device", "host" or "off"
    shares: tuple[RankShare, ...]
    operands: OperandLocation = OperandLocation.NODE_SHARED
    transport: str = "in place"  # or "host", "peers", "nccl": how the operands reach the devices
    device_memory: int = 0  # bytes each rank may take on its device; 0: as many as it needs
    grid_layout: GridLayout | None = None  # where the nodes form a grid; None: every node multiplies its rows of A by all of B
    parts: tuple[Plan, ...] = ()  # with a grid, for each rank the plan of the product that its device computes in buffers

    def with_transport(self, transport: str) -> Plan:
        """The same plan for this transport. NCCL brings whole rows, so with it each column panel is a matrix of its own in the
        buffers."""
        shares = _with_separate_panels(self.shares, self.problem, self.device) if transport == "nccl" else self.shares
        return replace(self, transport=transport, shares=shares)

    def refuse_endless(self) -> None:
        """UsageError where so little fits on a device that panels would be loaded millions of times."""
        for part in self.parts:
            part.refuse_endless()
        for share in self.shares if not self.parts else ():
            in_slabs = 0 if share.in_slabs else len(share.column_panels) * len(share.slabs)
            refuse_many(self.problem, share.tiling.loads(len(share.rows), self.problem.m) + in_slabs)

    @property
    def moduli(self) -> int:
        """The most moduli that a product from remainders may need; 0 where products are native."""
        return max(part.moduli for part in self.parts) if self.parts else self.shares[0].tiling.moduli

    @property
    def adds(self) -> bool:
        """Whether some tiles accumulate: their product is added to what is in C."""
        return bool(self.shares[0].slabs) and not self.parts

    @property
    def has_row_blocks(self) -> bool:
        """Whether the operands are row blocks: every rank has its rows of A and B, and keeps its rows of C."""
        return self.operands is OperandLocation.ROW_BLOCKS

    @property
    def at_root(self) -> bool:
        """Whether the matrices stay in the root's private memory, which no other rank can read."""
        return self.operands is OperandLocation.ROOT_ARRAYS

    @property
    def b_stays_parted(self) -> bool:
        """Whether no node has all of B in host memory, but each only the rows that its ranks provide."""
        return self.transport == "nccl" or self.grid_layout is not None

    @property
    def c_between_devices(self) -> bool:
        """Whether C of other nodes goes from their devices to those of the root's node, and lies in no other host memory."""
        return self.transport == "nccl" and len(self.topology.nodes) > 1 and self.operands is OperandLocation.NODE_SHARED

    @property
    def root_node(self) -> int:
        return self.topology.node_of(self.root)

    def a_rows_on(self, node: int) -> Span:
        """The rows of A that the ranks of a node multiply."""
        return self.topology.rows_of_node(node, self.problem.n)

    def c_rows_on(self, node: int) -> Span:
        """The rows of C in a node's host memory: on the root's node all of them, since C is gathered there; elsewhere the node's
        own, or none where the nodes form a grid or C goes from device to device."""
        if node == self.root_node:
            return Span(0, self.problem.n)
        return Span(0, 0) if self.c_only_at_root else self.a_rows_on(node)

    @property
    def c_only_at_root(self) -> bool:
        """Whether other nodes than the root's have none of the gathered C in host memory."""
        return self.grid_layout is not None or self.c_between_devices

    def c_rows_at_the_end(self, rank: int) -> Span:
        """The rows of the gathered C that this rank checks and writes to a file.

        On one node they are the rank's own. Of several, the ranks of the root's node share all rows equally.
        """
        if self.has_row_blocks or len(self.topology.nodes) == 1:
            return self.shares[rank].rows
        members = self.topology.nodes[self.root_node]
        return block(self.problem.n, len(members), members.index(rank)) if rank in members else Span(0, 0)

    def multiplied_by(self, row: int, columns: Span) -> tuple[int, ...]:
        """The ranks that compute these elements of C. On a grid several may: each some of the columns, or some terms of the
        sums."""
        if self.grid_layout is None:
            return tuple(share.rank for share in self.shares if share.rows.lo <= row < share.rows.hi)
        wanted = Rectangle(Span(row, row + 1), columns)
        return tuple(rank for rank in range(self.topology.size) if self.grid_layout.part_of_c(rank).common(wanted).elements)

    def b_rows_over_link(self, rank: int) -> Span:
        """The rows of B that cross this rank's link: with "peers" for all ranks of its node, with "nccl" for all ranks."""
        if self.has_row_blocks or self.transport == "nccl":
            return self.shares[rank].b_rows
        members = self.topology.nodes[self.topology.node_of(rank)]
        number, share = members.index(rank), self.shares[rank]
        if share.in_slabs:
            return Span(share.slabs[0][number].lo, share.slabs[-1][number].hi)
        return block(self.problem.l, len(members), number)

    def b_rows_on(self, node: int) -> Span:
        """The rows of B in the node's shared memory: all of them, unless each node has only those that its ranks provide."""
        return self.b_rows_from(node) if self.b_stays_parted else Span(0, self.problem.l)

    def b_rows_from(self, node: int) -> Span:
        """The rows of B that the ranks of this node provide."""
        return self.topology.rows_of_node(node, self.problem.l)

    @property
    def own_rows_suffice(self) -> bool:
        """Whether no rank, of those that have row blocks, reads other rows of B than its own from host memory: it is alone, or
        the others' rows come from their devices or by the grid."""
        return self.topology.size == 1 or self.transport in ("peers", "nccl") or self.grid_layout is not None

    def bytes_shared_on_node(self, node: int) -> int:
        """The bytes of the matrices that the ranks of a node share. With row blocks that is B alone, or nothing where B goes
        from device to device."""
        p = self.problem
        for_grid = self.grid_layout.bytes_shared_on_node(node) if self.grid_layout else 0
        if self.operands is OperandLocation.BLOCKS_2D:
            return for_grid
        if self.has_row_blocks:
            return for_grid if self.own_rows_suffice else p.operand_bytes(p.l, p.m)
        return (
            for_grid
            + p.operand_bytes(len(self.a_rows_on(node)), p.l)
            + p.operand_bytes(len(self.b_rows_on(node)), p.m)
            + p.bytes(len(self.c_rows_on(node)), p.m)
        )

    def bytes_of_buffers(self, rank: int) -> int:
        """The bytes of the buffers on a rank's device: row panels of A, column panels of B, tiles of C, and what it receives of
        other ranks' C. 0 where a CPU multiplies in place."""
        if self.parts:
            return self.parts[rank].bytes_of_buffers(0)
        return self.shares[rank].layout.bytes + bytes_of_slots(self, rank) if self.staged else 0

    def bytes_of_check(self, rank: int) -> int:
        """The host memory that the check takes where the host checks: for each row of B and of C, a number for each group of
        columns that is summed at once."""
        if self.check != "host":
            return 0
        p, alone = self.problem, self.topology.size == 1
        groups = -(-min(p.m, COLUMNS_AT_ONCE) // GROUP_COLUMNS)
        # With several ranks these numbers exist as computed, as sent, as received and as sorted by row; always once more as A is
        # multiplied by them.
        of_b = p.l * (groups * (1 if alone else 4) + -(-groups // GROUPS_AT_ONCE) * GROUPS_AT_ONCE)
        rows = len(self.shares[rank].rows) if len(self.topology.nodes) == 1 else 4 * p.n
        return 8 * (of_b + (groups + NUMBERS_A_ROW) * rows)

    def bytes_on_rank(self, rank: int) -> int:
        """The private host memory that a rank takes."""
        buffers = 0 if self.device == "cuda" else self.bytes_of_buffers(rank)
        of_c = self.problem.bytes(len(self.shares[rank].rows), self.problem.m) if self.has_row_blocks else 0
        if self.operands is OperandLocation.BLOCKS_2D and self.grid_layout is not None:
            of_c = self.problem.bytes(*self.grid_layout.placement.c[rank].shape)
        for_grid = self.grid_layout.bytes_on_rank(rank) if self.grid_layout else 0
        return PROCESS_BYTES + buffers + of_c + for_grid + self.bytes_of_check(rank)

    def bytes_on_node(self, node: int) -> int:
        """The host memory that a node takes, shared and private."""
        return self.bytes_shared_on_node(node) + sum(self.bytes_on_rank(rank) for rank in self.topology.nodes[node])

    def bytes_of_device_check(self, rank: int) -> int:
        """The memory that the check takes on a rank's device, beside the buffers."""
        rows, tiling = len(self.shares[rank].rows), self.shares[rank].tiling
        return most_bytes_of_check(self.problem, rows, tiling, self.device_memory) if self.check == "device" else 0

    def bytes_on_gpu(self, rank: int) -> int:
        """The memory that a rank takes on its GPU."""
        return self.bytes_of_buffers(rank) + self.bytes_of_device_check(rank) if self.device == "cuda" else 0


def refuse_many(problem: Problem, pieces: int) -> None:
    """UsageError where a rank would load more panels than MOST_PIECES."""
    if pieces > MOST_PIECES:
        raise UsageError(
            f"{problem} would be cut into {pieces:,} panels, more than {MOST_PIECES:,}: allow more memory or larger panels",
            code="sizes",
        )


@lru_cache(maxsize=16)
def _with_separate_panels(shares: tuple[RankShare, ...], problem: Problem, device: str) -> tuple[RankShare, ...]:
    """The shares with each column panel as a matrix of its own. Cached, since products are often alike."""

    def separate(share: RankShare) -> RankShare:
        tiling = replace(share.tiling, separate_panels=True)
        return replace(share, tiling=tiling, layout=layout_of(problem, len(share.rows), tiling, device), slabs=())

    return tuple(map(separate, shares))
