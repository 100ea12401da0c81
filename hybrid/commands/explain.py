"""The plan in words and bytes, for a machine one has or one has not. Needs no MPI and no GPU."""

from __future__ import annotations

from itertools import islice

from hybrid.core.settings import Settings
from hybrid.core.text import readable
from hybrid.kernels.catalogue import Choice
from hybrid.plan.capacity import FreeMemory, refuse_what_does_not_fit
from hybrid.plan.plan import PROCESS_BYTES, Plan
from hybrid.plan.rank_share import RankShare
from hybrid.plan.schedule import Arrival
from hybrid.reporting.run_report import moved_bytes

_RANKS_SHOWN = 16
_STRIPS_COUNTED = 10_000
_UNLIMITED = 1 << 200


def explain(plan: Plan, choice: Choice, settings: Settings, gpus_per_node: int) -> str:
    """Who owns what, in which order it arrives, and what memory it takes where."""
    p = plan.problem
    lines = [
        f"C ({p.n}×{p.m}) = A ({p.n}×{p.l}) · B ({p.l}×{p.m})  {p.dtype}  {p.operations / 1e9:.3g} GF  "
        f"matrices {readable(p.bytes_of_matrices)}",
        f"kernel {choice.kernel.name} on {plan.device}: {choice.reason}",
    ]
    for index, ranks in enumerate(plan.topology.nodes):
        lines.append(
            f"node {index}: ranks {ranks[0]}–{ranks[-1]}, rows {plan.a_rows_on(index)} of A, "
            f"{'all' if plan.transport != 'nccl' else f'rows {plan.b_rows_on(index)}'} of B, "
            f"rows {plan.c_rows_on(index)} of C: {readable(plan.bytes_shared_on_node(index))} shared, "
            f"{readable(plan.bytes_on_node(index))} with its processes "
            f"({readable(PROCESS_BYTES)} each)"
        )
    for share in plan.shares[:_RANKS_SHOWN]:
        buffers = plan.bytes_of_buffers(share.rank)
        where = f"GPU {_gpu(plan, share.rank, gpus_per_node)}" if plan.device == "cuda" else "its own buffers"
        tiles = sum(1 for _ in islice(share.tiles(), _STRIPS_COUNTED))
        lines.append(
            f"rank {share.rank}: rows {share.rows} in {len(share.row_panels)} chunk(s), "
            f"B in {share.pieces_of_b} {'slab' if share.in_slabs else 'panel'}(s), "
            f"{tiles}{'+' * (tiles == _STRIPS_COUNTED)} strip(s) of C, "
            + (f"{readable(buffers)} in {where}" if buffers else "multiplied where they lie")
        )
    if plan.topology.size > _RANKS_SHOWN:
        lines.append(f"… and {plan.topology.size - _RANKS_SHOWN} ranks more")
    if plan.staged:
        lines.append(_transport(plan, settings, gpus_per_node))
    lines += _what_stays(plan.shares[0])
    first = plan.shares[0]
    order = " ".join(_told(arrival, first) for arrival in islice(first.arrivals(), 50))
    lines.append(f"order of arrival on rank 0: {order if len(order) < 400 else order[:400] + ' …'}")
    nodes = len(plan.topology.nodes)
    if nodes > 1:
        lines.append(
            f"between nodes: B {'from GPU to GPU' if plan.transport == 'nccl' else f'to {nodes - 1} more'}, "
            f"{readable(moved_bytes(plan, 'gather'))} of C back to node {plan.root_node}, "
            f"in messages of at most {readable(settings.message_bytes)}"
        )
    return "\n".join(lines)


def _told(arrival: Arrival, share: RankShare) -> str:
    slab = "+".join(str(rows) for rows in arrival.slab if len(rows))
    if not slab:
        return f"{arrival.operand}{arrival.span}"
    return f"B{slab}" if share.in_slabs else f"B{arrival.span}/{slab}"


def _what_stays(share: RankShare) -> list[str]:
    if share.holds_all:
        return []
    a, b = (
        ("A", "chunks", len(share.row_panels), share.tiling.row_panels),
        ("B", "panels", len(share.column_panels), share.tiling.column_panels),
    )
    (stays, *of_stay), (passes, *of_pass) = (a, b) if share.tiling.stationary == "A" else (b, a)
    return [
        f"rank {share.rank} cannot hold all: {stays} stays, {of_stay[2]} of {of_stay[1]} {of_stay[0]} at a time, "
        f"while {passes} passes, {of_pass[2]} of {of_pass[1]} {of_pass[0]} at a time"
    ]


def with_transport_asked_for(plan: Plan, settings: Settings, gpus_per_node: int) -> Plan:
    """The plan with what the nodes hold on the road nccl, where that is asked for and no number stands against it."""
    return plan.with_transport("nccl") if settings.transport == "nccl" and not _why_no_nccl(plan, gpus_per_node) else plan


def _why_no_nccl(plan: Plan, gpus_per_node: int) -> str:
    most = max(map(len, plan.topology.nodes))
    return plan.why_no_nccl or ("ranks share a GPU" if gpus_per_node and most > gpus_per_node else "")


def _transport(plan: Plan, settings: Settings, gpus_per_node: int) -> str:
    loaded = readable(plan.problem.bytes(plan.problem.l, plan.problem.m))
    without_nccl = _why_no_nccl(plan, gpus_per_node)
    by_nccl = (
        "road nccl, if every rank has NCCL and a test shows that it brings all ranks' data: each link carries its share of the "
        f"{loaded} of B, and NCCL brings it to all other GPUs"
    )
    if settings.transport == "nccl":
        return f"the road nccl cannot be taken: {without_nccl}" if without_nccl else by_nccl
    if settings.transport == "auto" and not without_nccl and len(plan.topology.nodes) == plan.topology.size:
        return f"{by_nccl}; else host: each carries all of it"
    if plan.why_no_peers or settings.transport == "host":
        return f"road host: {plan.why_no_peers or 'asked for'}"
    return (
        f"road peers, if a test shows that the ranks of a node reach each other's devices: each link carries its share of the "
        f"{loaded} of B; else host: each carries all of it"
    )


def refuse_on_assumed_machine(plan: Plan, settings: Settings, gpus_per_node: int) -> None:
    """DoesNotFit if the memory the user gave for the machine is too small; what was not given is taken as unlimited."""
    rooms = [
        FreeMemory(
            host=f"node {share.node}",
            host_bytes=settings.host_memory or _UNLIMITED,
            shared_bytes=settings.host_memory or _UNLIMITED,
            gpu_bytes=settings.gpu_memory or _UNLIMITED,
            gpu_id=f"node {share.node} GPU {_gpu(plan, share.rank, gpus_per_node)}",
        )
        for share in plan.shares
    ]
    refuse_what_does_not_fit(plan, rooms)


def memory_of_a_rank(settings: Settings, ranks_per_node: int, gpus_per_node: int) -> int:
    """Of the GPU that it may share with others; 0 for unlimited."""
    sharing = -(-ranks_per_node // gpus_per_node) if gpus_per_node else 1
    return max(1, settings.gpu_memory // sharing) if settings.gpu_memory else 0


def _gpu(plan: Plan, rank: int, gpus_per_node: int) -> int:
    local = plan.topology.nodes[plan.topology.node_of(rank)].index(rank)
    return local % gpus_per_node if gpus_per_node else local
