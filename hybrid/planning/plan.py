# SPDX-License-Identifier: MIT
"""The plan of a product: each rank's rows, the order of arrivals, the way of C between devices, and the memory that all this
takes. It needs no MPI, CUDA or NumPy, and can be printed and tested for machines you do not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

from hybrid.core.problem import Problem, Span, Topology, alike, block, padded, pieces, record
from hybrid.core.text import readable
from hybrid.errors import DoesNotFit, UsageError
from hybrid.planning.arithmetic import aligned
from hybrid.planning.grid import GridLayout
from hybrid.planning.schedule import (
    GROUP_COLUMNS,
    NUMBERS_A_ROW,
    CheckLayout,
    RankShare,
    Region,
    group_columns,
    layout_of,
    most_bytes_of_check,
    slabs_of,
)
from hybrid.planning.tiling import ONE_RANK, OperandLocation, PlanRequest

PROCESS_BYTES = 96 << 20  # of Python, NumPy, MPI and BLAS on a rank, beside the matrices
MOST_PIECES = 1 << 21  # panels that one rank loads; more take longer to schedule than to multiply
COLUMNS_AT_ONCE = 128 * GROUP_COLUMNS  # columns of B that the host's check sums at a time
GROUPS_AT_ONCE = 16  # groups of columns whose sums the host's check multiplies by A at a time


@record
class Plan:
    """The work of all ranks."""

    problem: Problem
    topology: Topology
    root: int
    device: str  # "cpu", "cuda" or "emulate"
    staged: bool  # panels are copied into device buffers
    check: str  # where the product is verified: "device", "host" or "off"
    shares: tuple[RankShare, ...]
    operands: OperandLocation = OperandLocation.NODE_SHARED
    transport: str = "in place"  # or "host", "peers", "nccl": how the operands reach the devices
    device_memory: int = 0  # limit of each rank's device memory in bytes; 0: none
    grid_layout: GridLayout | None = None  # if the nodes form a grid; None: every node multiplies its rows of A by all of B
    parts: tuple[Plan, ...] = ()  # with a grid and buffers, each rank's plan for its device

    def with_transport(self, transport: str) -> Plan:
        """The same plan for this transport."""
        return replace(self, transport=transport, shares=self._shares_for_nccl if transport == "nccl" else self.shares)

    @cached_property
    def _shares_for_nccl(self) -> tuple[RankShare, ...]:
        """The shares with a separate buffer for each column panel: NCCL needs contiguous rows."""
        tiling = replace(self.shares[0].tiling, separate_panels=True)
        layouts = [layout_of(self.problem, len(share.rows), tiling, self.device) for share in self.shares]
        return tuple(
            replace(share, tiling=tiling, layout=layout, slabs=()) for share, layout in zip(self.shares, layouts, strict=True)
        )

    def on_device(self, rank: int) -> tuple[Plan, RankShare]:
        """The plan and share for a rank's device. On a grid, a CPU multiplies each panel of its rank's part in place as it
        arrives."""
        if self.parts:
            return self.parts[rank], self.parts[rank].shares[0]
        share, layout = self.shares[rank], self.grid_layout
        if layout is None:
            return self, share
        rows, panels = Span(0, len(layout.rows_of_a(rank).rows)), tuple(panel for panel in layout.panels(rank) if len(panel))
        tiling = replace(share.tiling, row_panels=1, column_panels=len(panels))
        row_panels = (rows,) if len(rows) else ()
        return self, replace(share, rows=rows, row_panels=row_panels, column_panels=panels, tiling=tiling)

    @property
    def moduli(self) -> int:
        """The most moduli that a tile may need; 0 for native products."""
        return max(part.moduli for part in self.parts) if self.parts else self.shares[0].tiling.moduli

    @property
    def adds(self) -> bool:
        """Whether some tiles accumulate into C."""
        return bool(self.shares[0].slabs) and not self.parts

    @property
    def has_row_blocks(self) -> bool:
        """Whether the operands are row blocks: every rank has its rows of A and B, and keeps its rows of C."""
        return self.operands is OperandLocation.ROW_BLOCKS

    @property
    def at_root(self) -> bool:
        """Whether the matrices stay in the root's private memory."""
        return self.operands is OperandLocation.ROOT_ARRAYS

    @property
    def root_node(self) -> int:
        return self.topology.node_of(self.root)

    @property
    def b_stays_parted(self) -> bool:
        """Whether each node has only the rows of B in host memory that its ranks provide."""
        return self.transport == "nccl" or self.grid_layout is not None

    @property
    def c_between_devices(self) -> bool:
        """Whether C of other nodes goes directly from their devices to those of the root's node."""
        return self.transport == "nccl" and len(self.topology.nodes) > 1 and self.operands is OperandLocation.NODE_SHARED

    @property
    def c_only_at_root(self) -> bool:
        """Whether only the root's node has C in host memory."""
        return self.grid_layout is not None or self.c_between_devices

    @property
    def own_rows_suffice(self) -> bool:
        """For row blocks: whether ranks get others' rows of B from devices or by the grid, not from host memory."""
        return self.topology.size == 1 or self.transport in ("peers", "nccl") or self.grid_layout is not None

    def b_rows_over_link(self, rank: int) -> Span:
        """The rows of B that this rank copies H2D: with "peers" on behalf of its node, with "nccl" of all ranks."""
        share, members = self.shares[rank], self.topology.nodes[self.topology.node_of(rank)]
        if self.has_row_blocks or self.transport == "nccl":
            return share.b_rows
        number = members.index(rank)
        if share.slabs:
            return Span(share.slabs[0][number].lo, share.slabs[-1][number].hi)
        return block(self.problem.l, len(members), number)

    def rows_on(self, node: int) -> dict[str, Span]:
        """The rows of A, B and C in a node's host memory.

        A: the rows that its ranks multiply. B: all rows, or with `b_stays_parted` those that its ranks provide. C: all rows on
        the root's node; elsewhere the rows computed there, or none with `c_only_at_root`.
        """
        p, of_a = self.problem, self.topology.rows_of_node(node, self.problem.n)
        of_b = self.topology.rows_of_node(node, p.l) if self.b_stays_parted else Span(0, p.l)
        of_c = Span(0, p.n) if node == self.root_node else Span(0, 0) if self.c_only_at_root else of_a
        return {"A": of_a, "B": of_b, "C": of_c}

    def c_rows_at_the_end(self, rank: int) -> Span:
        """The rows of the gathered C that this rank checks and writes to a file: on one node its own; with several nodes the
        ranks of the root's node divide all rows."""
        if self.has_row_blocks or len(self.topology.nodes) == 1:
            return self.shares[rank].rows
        members = self.topology.nodes[self.root_node]
        return block(self.problem.n, len(members), members.index(rank)) if rank in members else Span(0, 0)

    def multiplied_by(self, row: int, columns: Span) -> tuple[int, ...]:
        """The ranks that may have computed these elements of C: on a grid several, by columns or terms of the sums; for a
        symmetric C those with the row or the columns."""
        if self.grid_layout is None:
            mirrored = columns if self.problem.symmetric else Span(row, row)
            return tuple(
                share.rank for share in self.shares if share.rows.meets(Span(row, row + 1)) or share.rows.meets(mirrored)
            )
        parts = map(self.grid_layout.part_of_c, range(self.topology.size))
        meeting = (part.rows.meets(Span(row, row + 1)) and part.columns.meets(columns) for part in parts)
        return tuple(rank for rank, meets in enumerate(meeting) if meets)

    def bytes_shared_on_node(self, node: int) -> int:
        """Bytes of the matrices that the ranks of a node share; of row blocks only B, or nothing if `own_rows_suffice`."""
        p, layout = self.problem, self.grid_layout
        for_grid = p.bytes(*layout.grid.of_b(node, p).shape) if layout else 0
        if self.operands is OperandLocation.BLOCKS_2D:
            return for_grid
        if self.has_row_blocks:
            return for_grid if self.own_rows_suffice else p.operand_bytes(p.l, p.m)
        rows = {key: len(span) for key, span in self.rows_on(node).items()}
        if self.problem.symmetric:
            rows["B"] = 0
        return for_grid + p.operand_bytes(rows["A"], p.l) + p.operand_bytes(rows["B"], p.m) + p.bytes(rows["C"], p.m)

    def bytes_of_buffers(self, rank: int) -> int:
        """Bytes of the buffers on a rank's device: panels of A and B, tiles of C, and received C; 0 in place."""
        if self.parts:
            return self.parts[rank].bytes_of_buffers(0)
        if not self.staged:
            return 0
        slots = slots_of(self, rank) if self.c_between_devices else Region(0, 0)
        return slots.offset_of(SLOTS) if slots.slot_bytes else self.shares[rank].layout.bytes

    def bytes_of_check(self, rank: int) -> int:
        """Bytes of the host's check: for each row of B and C, one number for each group of columns summed at a time."""
        if self.check != "host":
            return 0
        p, alone = self.problem, self.topology.size == 1
        groups = -(-min(p.m, COLUMNS_AT_ONCE) // GROUP_COLUMNS)
        # With several ranks, four copies exist: computed, sent, received, and sorted by row; and one more when multiplied by A.
        of_b = p.l * (groups * (1 if alone else 4) + -(-groups // GROUPS_AT_ONCE) * GROUPS_AT_ONCE)
        rows = len(self.shares[rank].rows) if len(self.topology.nodes) == 1 else 4 * p.n
        return 8 * (of_b + (groups + NUMBERS_A_ROW) * rows)

    def bytes_on_rank(self, rank: int) -> int:
        """Bytes of a rank's private host memory."""
        p, layout = self.problem, self.grid_layout
        needed = PROCESS_BYTES + self.bytes_of_check(rank) + (layout.bytes_on_rank(rank) if layout else 0)
        if self.device != "cuda":
            needed += self.bytes_of_buffers(rank)
        if self.operands is OperandLocation.BLOCKS_2D and layout:
            return needed + p.bytes(*layout.placement.c[rank].shape)
        return needed + (p.bytes(len(self.shares[rank].rows), p.m) if self.has_row_blocks else 0)

    def bytes_on_node(self, node: int) -> int:
        """Bytes of a node's host memory, shared and private."""
        return self.bytes_shared_on_node(node) + sum(self.bytes_on_rank(rank) for rank in self.topology.nodes[node])

    def bytes_of_device_check(self, rank: int) -> int:
        """Bytes of the check on a rank's device, beside the buffers."""
        rows, tiling = len(self.shares[rank].rows), self.shares[rank].tiling
        return most_bytes_of_check(self.problem, rows, tiling, self.device_memory) if self.check == "device" else 0

    def check_layout(self, rank: int) -> CheckLayout:
        """The pieces that a rank's device sums for the check; B is divided by the links that copy it."""
        p, share = self.problem, self.shares[rank]
        links = {"nccl": range(self.topology.size), "peers": self.topology.nodes[self.topology.node_of(rank)]}.get(self.transport)
        of_b = tuple(map(self.b_rows_over_link, links)) if links is not None else (Span(0, p.l),)
        return CheckLayout(share, p.l, p.m, of_b, group_columns(self.device_memory))

    def bytes_on_gpu(self, rank: int) -> int:
        """Bytes of GPU memory of a rank."""
        return self.bytes_of_buffers(rank) + self.bytes_of_device_check(rank) if self.device == "cuda" else 0


@lru_cache(maxsize=64)
def make_plan(request: PlanRequest) -> Plan:
    """The plan for this request, cached."""
    problem, topology, device = request.problem, request.topology, request.device
    staged, memory, tiling = request.copies_to_buffers, request.device_memory, request.choose_tiling()
    needed = layout_of(problem, request.rows, tiling, device).bytes if memory else 0
    pieces_of_b = -(-problem.l // tiling.slab_rows) if tiling.slab_rows else tiling.column_panels_in(problem.m)
    panels = -(-request.rows // tiling.panel_rows) + pieces_of_b
    if staged and not (tiling.slab_rows or request.grid) and needed <= memory:  # else `shortage` says what is missing
        panels = tiling.loads(request.rows, problem.m)
    if panels > MOST_PIECES:
        raise UsageError(
            f"{problem} would be cut into {panels:,} panels, more than {MOST_PIECES:,}: allow more memory or larger panels",
            code="sizes",
        )
    check = request.check
    if check in ("on", "full"):  # on the devices, if the sums fit beside the buffers
        needed += most_bytes_of_check(problem, request.rows, tiling, memory) if memory else 0
        check = "device" if staged and not request.grid and needed <= memory else "host"

    column_panels = tuple(pieces(Span(0, problem.m), tiling.panel_columns))
    slabs = slabs_of(problem.l, topology.size, tiling.slab_rows) if tiling.slab_rows and column_panels else ()
    shares = []
    for rank, (rows, b_rows) in enumerate(zip(request.rows_of_a, request.rows_of_b, strict=True)):
        row_panels = tuple(pieces(Span(0, len(rows)), tiling.panel_rows))
        layout = layout_of(problem, len(rows), tiling, device)
        blocks = request.rows_of_a if problem.symmetric else ()
        shares.append(RankShare(rank, rows, b_rows, row_panels, column_panels, tiling, layout, slabs, blocks, problem.symmetric))

    plan = Plan(problem, topology, request.root, device, staged, check, tuple(shares), request.operands, device_memory=memory)
    if not request.grid:
        return plan
    of_grid = GridLayout(problem, topology, request.grid, request.placement, request.message_bytes)
    parts = []
    for rank in range(topology.size) if staged else ():  # most ranks' parts are equal and share a cached plan
        (n, l), (_, m) = of_grid.rows_of_a(rank).shape, of_grid.part_of_c(rank).shape
        part = replace(request, problem=replace(problem, n=n, l=l, m=m), topology=ONE_RANK, root=0, check="off", grid=None)
        # Column panels of B arrive from other nodes, so there are no k-slabs.
        part = replace(part, operands=OperandLocation.NODE_SHARED, placed=None, accumulates=False, c_leaves=True)
        parts.append(make_plan(part))
    return replace(plan, grid_layout=of_grid, parts=tuple(parts))


# C between devices: receivers, pieces, and slots of device memory.
SLOTS = 4  # of a receiver: some receive while others are copied to host memory
PIECE_BYTES = 32 << 20  # or one row: a D2H copy of 0.6 ms, many times the launch of an NCCL kernel


@record
class SentPiece:
    """The part of C in one message."""

    sender: int
    rows: Span
    columns: Span
    tile: int  # its number among the sender's tiles
    tiles: int  # number of the sender's tiles


def receivers(plan: Plan) -> dict[int, int]:
    """For each rank with rows outside the root's node, the rank that receives its C: the root's node's ranks round robin, to use
    all links."""
    members = plan.topology.nodes[plan.root_node]
    senders = [rank for node in plan.topology.nodes if node is not members for rank in node if len(plan.shares[rank].rows)]
    return {sender: members[number % len(members)] for number, sender in enumerate(senders)}


def senders_to(plan: Plan, rank: int) -> list[int]:
    """The ranks whose C this rank receives."""
    if rank not in plan.topology.nodes[plan.root_node]:  # most ranks of a large cluster
        return []
    return [sender for sender, receiver in receivers(plan).items() if receiver == rank]


def rows_of_pieces(plan: Plan, share: RankShare, rows: int) -> list[Span]:
    """The rows of each piece of a tile with `rows` rows."""
    return list(pieces(Span(0, rows), _most_rows(plan, share)))


def pieces_received(plan: Plan, rank: int) -> list[SentPiece]:
    """The pieces that this rank receives, in order: each sender's in the order of sending, several senders interleaved evenly."""
    in_turn = []
    for order, sender in enumerate(senders_to(plan, rank)):
        share, sent = plan.shares[sender], []
        tiles = [tile for tile in share.tiles() if tile.completes]
        for number, tile in enumerate(tiles):
            first = share.rows.lo + tile.rows.lo
            for rows in rows_of_pieces(plan, share, len(tile.rows)):
                sent.append(SentPiece(sender, Span(first + rows.lo, first + rows.hi), tile.columns, number, len(tiles)))
        in_turn += [((number + 1) / len(sent), order, piece) for number, piece in enumerate(sent)]
    return [piece for *_, piece in sorted(in_turn, key=lambda entry: entry[:2])]


def slots_of(plan: Plan, rank: int) -> Region:
    """The slots for received C, behind this rank's buffers; of 0 bytes if it receives none."""
    senders = (plan.shares[sender] for sender in senders_to(plan, rank))
    sizes = (min(len(share.rows), _most_rows(plan, share)) * _row_bytes(plan, share) for share in senders)
    return Region(aligned(plan.shares[rank].layout.bytes), aligned(max(sizes, default=0)))


def rows_written(plan: Plan, rank: int) -> Span:
    """With C between devices, the range of rows that a rank's D2H copies write: its own and received ones; empty on nodes other
    than the root's."""
    if plan.topology.node_of(rank) != plan.root_node:
        return Span(0, 0)
    rows = [plan.shares[each].rows for each in (rank, *senders_to(plan, rank)) if len(plan.shares[each].rows)]
    return Span(min(each.lo for each in rows), max(each.hi for each in rows)) if rows else Span(0, 0)


def _most_rows(plan: Plan, share: RankShare) -> int:
    return max(1, PIECE_BYTES // max(1, _row_bytes(plan, share)))


def _row_bytes(plan: Plan, share: RankShare) -> int:
    """The row stride of C in a sender's buffers and in the slots. Gaps between rows are sent too, so that messages are
    contiguous."""
    item, width = plan.problem.item_size, share.layout.width
    return item * (width if plan.device == "cpu" else padded(width, item))


@record
class FreeMemory:
    """The memory that a rank may use. `gpu_id`: equal for ranks that share a GPU."""

    host: str
    host_bytes: int
    gpu_bytes: int = 0
    gpu_id: str = ""
    gpu_reserved: int = 0  # the part of gpu_bytes in buffers of earlier products, reused by the next one
    gpu_pooled: int = 0  # the part of gpu_bytes in CuPy's memory pool of this process, for arrays such as a rank's rows of C
    gpu_queried: bool = True  # False: the driver was not queried; `gpu_bytes` is an upper limit, only `gpu_reserved` is certain


_USE_LESS = "smaller matrices or float32"
_ON_HOST = f"use more nodes, {_USE_LESS}", "host-memory"


def shortage(plan: Plan, free: Sequence[FreeMemory], asked: PlanRequest) -> DoesNotFit | None:
    """The error naming the node or GPU that is too small for its part of the plan, and the missing bytes; None if all fits.

    `free`: each rank's memory. `asked`: with the bytes that ranks hold already, and need beside the plan.
    """
    topology, p = plan.topology, plan.problem
    needs: list[tuple[int, str, int, str, str]] = []
    if plan.staged and plan.device_memory and plan.device != "cuda":  # --gpu-memory limits buffers of CPUs too
        more = "allow more (--gpu-memory)", "gpu-memory"
        needs += [
            (plan.bytes_of_buffers(rank), f"for a row of A and a column of B on rank {rank}", plan.device_memory, *more)
            for rank in range(topology.size)
        ]
    for nodes in alike(free[members[0]].host for members in topology.nodes):  # several if nodes are pretended
        here = [rank for node in nodes for rank in topology.nodes[node]]
        there = asked.bytes_there if plan.operands is asked.operands and plan.root_node in nodes else 0
        needed = sum(map(plan.bytes_on_node, nodes)) - there + sum(asked.besides[rank] for rank in here if asked.besides)
        needs.append((needed, f"of memory on {free[here[0]].host}", min(free[rank].host_bytes for rank in here), *_ON_HOST))
    for users in alike(each.gpu_id for each in free) if plan.device == "cuda" else ():
        needed = sum(plan.bytes_on_gpu(rank) + (asked.besides_on_gpu[rank] if asked.besides_on_gpu else 0) for rank in users)
        named = f"rank {users[0]}" if len(users) == 1 else f"ranks {', '.join(map(str, users))}"
        where, available = f"on the GPU of {named} on {free[users[0]].host}", min(free[rank].gpu_bytes for rank in users)
        needs.append((needed, where, available, f"use more GPUs, {_USE_LESS}", "gpu-memory"))
    return next(filter(None, (_missing(p, *each) for each in needs)), None)


def shortage_of_matrix(needed: int, free: Sequence[FreeMemory]) -> DoesNotFit | None:
    """The error if a matrix of `needed` bytes does not fit on a node, else None. `free`: of the node's ranks."""
    available = min(each.host_bytes for each in free)
    return _missing("a matrix", needed, f"of memory on {free[0].host}", available, "take a smaller one", "host-memory")


def _missing(what: object, needed: int, where: str, available: int, remedy: str, code: str) -> DoesNotFit | None:
    if needed <= available:
        return None
    said = f"{what} needs {readable(needed)} {where}, which has {readable(available)}: {readable(needed - available)} are missing"
    return DoesNotFit(f"{said}; {remedy}", code=code)


_THROUGH_HOSTS = "the nodes form a grid, whose parts travel from host to host"


def why_no_peers(plan: Plan) -> str:
    """Why the ranks of a node cannot fetch B from each other's devices; "" if they can."""
    if plan.grid_layout is not None:
        return _THROUGH_HOSTS
    if all(len(members) == 1 for members in plan.topology.nodes):
        return "one rank a node: nothing to exchange"
    if plan.has_row_blocks and len(plan.topology.nodes) > 1:
        return "rows of B lie on other nodes"
    return _why_not_all_resident(plan)


def why_no_nccl(plan: Plan) -> str:
    """Why NCCL cannot distribute all ranks' rows of B; "" if it can."""
    if plan.topology.size == 1:
        return "one rank: nothing to exchange"
    if plan.device != "cuda":
        return "NCCL joins GPUs only"
    if plan.grid_layout is not None:
        return _THROUGH_HOSTS
    if refusal := _why_not_all_resident(plan):
        return refusal
    by_nccl, memory = plan.with_transport("nccl"), plan.device_memory
    if memory and any(by_nccl.bytes_on_gpu(rank) > memory for rank in range(plan.topology.size)):
        return "the devices have no room for what it needs beside the panels"
    return ""


def _why_not_all_resident(plan: Plan) -> str:
    if not all(share.holds_all for share in plan.shares):
        return "not everything fits on the devices: some panels are loaded more than once"
    if not all(len(share.rows) and share.column_panels for share in plan.shares):
        return "some ranks have nothing to multiply"
    return ""
