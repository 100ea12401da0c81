# SPDX-License-Identifier: MIT
"""The plan of one product as plain numbers: which rank has which rows, in which order they arrive, and what memory that takes.

Nothing here touches MPI, CUDA or NumPy: a plan can be made, printed and tested for machines that one does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from hybrid.core.problem import Problem, record
from hybrid.core.spans import Span, Topology, block
from hybrid.core.text import readable
from hybrid.errors import DoesNotFit, UsageError
from hybrid.plan.check_layout import GROUP_COLUMNS, NUMBERS_A_ROW, memory_for_check, most_bytes_of_check
from hybrid.plan.gather_layout import bytes_of_slots
from hybrid.plan.grid import Grid, GridLayout, Rectangle, grid_layout, received_of_each
from hybrid.plan.layout import Tiling, layout_of
from hybrid.plan.machine_model import MachineModel
from hybrid.plan.schedule import RankShare, slabs_of
from hybrid.plan.tiling import OperandLocation, PlanRequest, TilingRequest, choose_tiling

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

    def on_device(self, rank: int) -> tuple[Plan, RankShare]:
        """The plan by which a rank's device computes, and the rank's share of that. On a grid this is the rank's part of the
        product, of which a CPU multiplies each panel in place as it arrives."""
        if self.parts:
            return self.parts[rank], self.parts[rank].shares[0]
        share, layout = self.shares[rank], self.grid_layout
        if layout is None:
            return self, share
        rows, panels = Span(0, len(layout.rows_of_a(rank).rows)), tuple(panel for panel in layout.panels(rank) if len(panel))
        tiling = replace(share.tiling, row_panels=1, column_panels=len(panels))
        row_panels = (rows,) if len(rows) else ()
        return self, replace(share, rows=rows, row_panels=row_panels, column_panels=panels, tiling=tiling)

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


# -------- planning
# The plan that fulfils a request: the product cut into row blocks, row panels, and column panels or k-slabs.


@lru_cache(maxsize=16)
def make_plan(request: PlanRequest) -> Plan:
    """The plan for this request. It is cached: a product is often followed by others like it."""
    problem, topology = request.problem, request.topology
    staged, tallest = request.copies_to_buffers, max(map(len, request.rows_of_a))
    tiling = choose_tiling(_tiling_request(request, tallest))
    pieces_of_b = -(-problem.l // tiling.slab_rows) if tiling.slab_rows else tiling.column_panels_in(problem.m)
    refuse_many(problem, -(-tallest // tiling.panel_rows) + pieces_of_b)
    check = request.check
    if check == "on":
        check = "device" if staged and not request.grid and _checks_on_device(request, tiling, tallest) else "host"
    layout = None
    if request.grid:
        layout = grid_layout(problem, topology, request.grid, request.placement, request.message_bytes)
    return Plan(
        problem,
        topology,
        request.root,
        request.device,
        staged,
        check,
        _shares(request, tiling),
        _operand_location(request),
        device_memory=request.device_memory,
        grid_layout=layout,
        parts=_parts(request, layout) if layout is not None and staged else (),
    )


def _tiling_request(request: PlanRequest, tallest: int) -> TilingRequest:
    """What the tiling depends on. `tallest`: the rows of the largest row block."""
    problem, nodes, staged = request.problem, request.topology.nodes, request.copies_to_buffers
    on_devices = request.row_blocks is not None  # the operands need not cross the links to the host
    alone = on_devices and request.topology.size == 1 and not request.device_memory  # nothing arrives piece by piece
    for_check = memory_for_check(problem, tallest, request.device_memory) if request.check == "on" else 0
    return TilingRequest(
        problem,
        tallest,
        device=request.device,
        nodes=len(nodes),
        links=0 if on_devices else max(map(len, nodes)),
        memory=request.device_memory - for_check if staged else 0,
        panel_rows=request.panel_rows,
        panel_columns=request.panel_columns or (problem.m if alone else 0),
        slab_rows=request.slab_rows,
        may_use_slabs=staged and request.accumulates and len(nodes) == 1 and not on_devices,
        c_leaves=request.c_leaves or (len(nodes) > 1 and not on_devices),
        moduli=request.moduli,
        speed=request.speed,
        model=request.model,
    )


def _shares(request: PlanRequest, tiling: Tiling) -> tuple[RankShare, ...]:
    """The shares of all ranks."""
    problem, topology, device = request.problem, request.topology, request.device
    column_panels = tiling.column_panels_of(problem.m, device)
    links = topology.size if tiling.interleaved else 1
    slabs = slabs_of(problem.l, links, tiling.slab_rows) if tiling.slab_rows and column_panels else ()
    return tuple(
        RankShare(
            rank,
            topology.node_of(rank),
            rows,
            b_rows,
            tiling.row_panels_of(len(rows), device),
            column_panels,
            tiling,
            layout_of(problem, len(rows), tiling, device),
            slabs,
        )
        for rank, (rows, b_rows) in enumerate(zip(request.rows_of_a, request.rows_of_b, strict=True))
    )


def _operand_location(request: PlanRequest) -> OperandLocation:
    if request.blocks_2d is not None:
        return OperandLocation.BLOCKS_2D
    return OperandLocation.ROW_BLOCKS if request.row_blocks is not None else OperandLocation.NODE_SHARED


def _parts(request: PlanRequest, layout: GridLayout) -> tuple[Plan, ...]:
    """For each rank of a grid the plan of the product that its device computes, as if the rank were alone.

    The column panels of B of such a product arrive from other nodes, so B does not come in k-slabs.
    """
    alone = replace(
        request,
        topology=Topology(((0,),)),
        root=0,
        accumulates=False,
        check="off",
        row_blocks=None,
        blocks_2d=None,
        left_out=(),
        grid=None,
        c_leaves=True,
    )
    made: dict[tuple[int, int, int], Plan] = {}  # few: most ranks' parts are alike
    parts = []
    for rank in range(request.topology.size):
        (n, l), (_, m) = layout.rows_of_a(rank).shape, layout.part_of_c(rank).shape
        if (n, l, m) not in made:
            made[n, l, m] = make_plan(replace(alone, problem=replace(request.problem, n=n, l=l, m=m)))
        parts.append(made[n, l, m])
    return tuple(parts)


def _checks_on_device(request: PlanRequest, tiling: Tiling, rows: int) -> bool:
    """Whether the check's sums have room beside the buffers, where the plan is cut to the memory of the devices."""
    if not request.device_memory:
        return True
    buffers = layout_of(request.problem, rows, tiling, request.device).bytes
    return buffers + most_bytes_of_check(request.problem, rows, tiling, request.device_memory) <= request.device_memory


# -------- capacity
# Does a plan fit the memory of its nodes and GPUs? If it does not, how much is missing?


@record
class FreeMemory:
    """The memory that a rank may use. `gpu_id` tells which ranks share a GPU.

    Where not `gpu_queried`, the driver has not been asked yet: `gpu_bytes` is an upper limit only, and what is certain is
    `gpu_reserved`, which this project still holds from earlier products.
    """

    host: str
    host_bytes: int
    shared_bytes: int  # free in the folder where node-shared matrices are made
    gpu_bytes: int = 0
    gpu_id: str = ""
    gpu_reserved: int = 0  # the part of gpu_bytes in buffers of earlier products, which the next one uses
    gpu_pooled: int = 0  # the part of gpu_bytes in CuPy's memory pool of this process, for arrays such as a rank's rows of C
    gpu_queried: bool = True


@record
class Shortage:
    """Which memory is too small, and how much of it is missing. `code`: of `hybrid.errors.CODES`."""

    code: str
    text: str

    def error(self) -> DoesNotFit:
        return DoesNotFit(self.text, code=self.code)


def shortage(
    plan: Plan,
    free: Sequence[FreeMemory],
    *,
    already_there: int = 0,
    besides: Sequence[int] = (),
    besides_on_gpu: Sequence[int] = (),
) -> Shortage | None:
    """Which node or GPU has no room for its part, and how much is missing. None if everything fits.

    `free[rank]`: for all ranks. `already_there`: bytes on the root's node that the plan counts and that are allocated already.
    `besides[rank]`: host memory that a rank needs and the plan does not count; `besides_on_gpu[rank]`: the same for its GPU.
    """
    of_hosts = _shortage_of_hosts(plan, free, already_there, besides)
    return of_hosts or _shortage_of_staging(plan) or _shortage_of_gpus(plan, free, besides_on_gpu)


def shortage_of_matrix(needed: int, free: Sequence[FreeMemory], *, shared: bool) -> Shortage | None:
    """Where a matrix of so many bytes has no room on a node. None if it fits.

    `free`: for the ranks of the node. `shared`: the matrix lies in node-shared memory.
    """
    places = [("memory", min(each.host_bytes for each in free), "")]
    if shared:
        enlarge = "; enlarge /dev/shm (in a container: --shm-size)"
        places.append(("shared memory", min(each.shared_bytes for each in free), enlarge))
    for kind, available, remedy in places:
        if needed > available:
            return Shortage(
                "host-memory" if kind == "memory" else "shared-memory",
                f"a matrix of {readable(needed)} does not fit the {kind} of {free[0].host}, where {readable(available)} are "
                f"free: {readable(needed - available)} are missing{remedy}",
            )
    return None


def _shortage_of_hosts(plan: Plan, free: Sequence[FreeMemory], already_there: int, besides: Sequence[int]) -> Shortage | None:
    nodes_of_host: dict[str, list[int]] = {}  # several only where nodes are pretended
    for index, ranks in enumerate(plan.topology.nodes):
        nodes_of_host.setdefault(free[ranks[0]].host, []).append(index)
    for host, nodes in nodes_of_host.items():
        here = [rank for index in nodes for rank in plan.topology.nodes[index]]
        there = already_there if plan.root_node in nodes else 0
        needed = sum(plan.bytes_on_node(index) for index in nodes) - there
        needed += sum(besides[rank] for rank in here) if besides else 0
        available = min(free[rank].host_bytes for rank in here)
        if needed > available:
            return Shortage(
                "host-memory",
                f"{plan.problem} needs {readable(needed)} of memory on {host}, which has {readable(available)}: "
                f"{readable(needed - available)} are missing; use more nodes, smaller matrices or float32",
            )
        several = [index for index in nodes if len(plan.topology.nodes[index]) > 1 and not plan.at_root]
        needed = sum(plan.bytes_shared_on_node(index) for index in several) - there
        available = min(free[rank].shared_bytes for rank in here)
        if needed > available:
            return Shortage(
                "shared-memory",
                f"{plan.problem} needs {readable(needed)} of shared memory on {host}, where {readable(available)} are free: "
                f"{readable(needed - available)} are missing; enlarge /dev/shm (in a container: --shm-size) or start one rank "
                "a node",
            )
    return None


def _shortage_of_staging(plan: Plan) -> Shortage | None:
    """A shortage on a device that is no GPU, whose buffers --gpu-memory limits."""
    if not (plan.staged and plan.device_memory) or plan.device == "cuda":
        return None
    for rank in range(plan.topology.size):
        if plan.bytes_of_buffers(rank) > plan.device_memory:
            return Shortage(
                "gpu-memory",
                f"a row of A, a column of B and their element of C take {readable(plan.bytes_of_buffers(rank))}, but rank {rank} "
                f"may take {readable(plan.device_memory)} (--gpu-memory)",
            )
    return None


def _shortage_of_gpus(plan: Plan, free: Sequence[FreeMemory], besides: Sequence[int]) -> Shortage | None:
    ranks_of_gpu: dict[str, list[int]] = {}
    for rank, memory in enumerate(free if plan.device == "cuda" else ()):
        ranks_of_gpu.setdefault(memory.gpu_id, []).append(rank)
    for ranks in ranks_of_gpu.values():
        needed = sum(plan.bytes_on_gpu(rank) + (besides[rank] if besides else 0) for rank in ranks)
        available = min(free[rank].gpu_bytes for rank in ranks)
        if needed > available:
            named = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
            return Shortage(
                "gpu-memory",
                f"{plan.problem} needs {readable(needed)} on the GPU of {named} on {free[ranks[0]].host}, "
                f"which has {readable(available)} free: "
                f"{readable(needed - available)} are missing; use more GPUs, smaller matrices or float32",
            )
    return None


# -------- possible transports
# Which transports between devices a plan allows, as far as its numbers tell.

_THROUGH_HOSTS = "the nodes form a grid, whose parts travel from host to host"


def why_no_peers(plan: Plan) -> str:
    """Why the ranks of a node cannot take B from each other's devices; empty where they may."""
    if plan.grid_layout is not None:
        return _THROUGH_HOSTS
    if all(len(members) == 1 for members in plan.topology.nodes):
        return "one rank a node: nothing to exchange"
    if plan.has_row_blocks and len(plan.topology.nodes) > 1:
        return "rows of B lie on other nodes"
    return _why_not_all_resident(plan)


def why_no_nccl(plan: Plan) -> str:
    """Why NCCL cannot bring all ranks' rows of B to all devices; empty where it may."""
    if plan.topology.size == 1:
        return "one rank: nothing to exchange"
    if plan.device != "cuda":
        return "NCCL joins GPUs only"
    if plan.grid_layout is not None:
        return _THROUGH_HOSTS
    return _why_not_all_resident(plan) or _why_no_room_for_nccl(plan)


def _why_no_room_for_nccl(plan: Plan) -> str:
    """Why the buffers that NCCL needs, which are larger than others, do not fit; empty where they do, and where the plan is not
    cut to the devices' memory."""
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


# -------- node forecast
# A simulation of a product on many nodes of GPUs, panel by panel, for the busiest node and the root's.
#
# A column panel of B comes over the network, goes to the GPUs and is multiplied. Its part of C goes back to the host and on
# to the root's node; or by NCCL to the GPUs of the root's node and from them to its host, when all of B is there. Each of
# these works on one thing at a time, and both directions of a link at once. A node's link brings the parts of A and B that
# the node needs before it brings C.


@record
class NodeForecast:
    """Seconds after the start, on the node that is last."""

    a_there: float  # all of A that a node needs
    b_there: float
    multiplied: float
    c_there: float  # all of C, at the root


def node_forecast(plan: Plan, model: MachineModel, network: float, speed: float, gpus: int) -> NodeForecast:
    """The forecast where each rank makes its own rows of A and B, and the root gathers C.

    `network`: bytes that a node's link carries in a second. `speed`: of the kernels, relative to the model's. `gpus`: the number
    of GPUs on which the ranks of a node multiply.
    """
    problem, topology, layout = plan.problem, plan.topology, plan.grid_layout
    nodes = range(len(topology.nodes))
    grid = layout.grid if layout is not None else Grid(len(nodes), 1)
    panels = max(1, layout.pieces["B"] if layout is not None else len(plan.shares[0].column_panels))
    placement = PlanRequest(problem, topology, root=plan.root).placement
    received = [received_of_each(grid, node, problem, topology, placement) for node in nodes]
    of_a, of_b = (max(each[operand] for each in received) for operand in (0, 1))
    of_c = received[plan.root_node][2]
    tallest = max(nodes, key=lambda node: grid.of_a(node, problem).elements * len(grid.of_b(node, problem).columns))
    (height, depth), width = grid.of_a(tallest, problem).shape, len(grid.of_b(tallest, problem).columns)

    # How often a GPU's link brings all of a node's B: once for each of its ranks, or a part of it where the GPUs fetch the rest
    # from each other, or not at all where NCCL brings it to the GPUs.
    ranks_a_gpu = -(-max(map(len, topology.nodes)) // gpus)
    over_each_link = {"peers": 1 / gpus, "nccl": 0.0}.get(plan.transport, float(ranks_a_gpu))
    rate = model.multiply_adds_per_byte(problem.operand_dtype) * model.link_bytes_per_second * speed * gpus

    def seconds(elements: float, bytes_per_second: float) -> float:
        return elements * problem.item_size / bytes_per_second

    link = model.link_bytes_per_second
    a_there = b_there = seconds(of_a, network)
    root_free = a_there + seconds(of_b, network)
    copied = a_there + seconds(height * depth, link * gpus)
    multiplied = copied_out = c_there = 0.0
    for _ in range(panels):
        b_there += seconds(of_b / panels, network)
        copied = max(copied, b_there) + seconds(depth * width * over_each_link / panels, link)
        multiplied = max(multiplied, copied) + height * depth * width / panels / rate
        copied_out = max(copied_out, multiplied) + seconds(height * width / panels, link * gpus)
        if plan.c_between_devices:
            c_there = max(c_there, multiplied, root_free) + seconds(of_c / panels, min(network, link * gpus))
        else:
            c_there = max(c_there, copied_out, root_free) + seconds(of_c / panels, network)
    return NodeForecast(a_there, b_there, multiplied, c_there)
