"""The plan of one product as plain numbers: who owns which rows, in which order they arrive, what memory that takes.

Nothing here touches MPI, CUDA or NumPy: a plan can be made, printed and tested for machines one does not have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology, block
from hybrid.errors import UsageError
from hybrid.plan.buffer_layout import layout_of
from hybrid.plan.k_slabs import slabs_of
from hybrid.plan.rank_share import RankShare
from hybrid.plan.tiling import choose_tiling

PROCESS_BYTES = 96 << 20  # what Python, NumPy, MPI and BLAS take on a rank beside the matrices
MOST_PIECES = 1 << 21  # of one rank
MOST_GROUPS, GROUP_COLUMNS = 16, 512  # of the check: fewer columns in a sum show smaller errors, and take more memory


def column_groups(columns: int) -> int:
    """How many groups of columns the check sums apart."""
    return min(MOST_GROUPS, max(1, -(-columns // GROUP_COLUMNS)))


@dataclass(frozen=True)
class Plan:
    """Who does what, for all ranks."""

    problem: Problem
    topology: Topology
    root: int
    device: str  # "cpu", "cuda" or "emulate"
    staged: bool  # chunks and panels are copied into buffers of the device
    check: bool  # the product will be verified
    shares: tuple[RankShare, ...]
    transport: str = "in place"  # or "host", "peers", "nccl": how the operands come to the devices
    resident: bool = False  # every rank has its rows of A and B, and keeps its rows of C
    device_memory: int = 0  # bytes each rank may take on its device; 0: as many as it needs
    at_root: bool = False  # the matrices are the root's own arrays: they lie in no window

    def with_transport(self, transport: str) -> Plan:
        """With buffers as the road takes them: NCCL sends what lies in one piece."""
        shares = _panels_apart(self.shares, self.problem, self.device) if transport == "nccl" else self.shares
        return replace(self, transport=transport, shares=shares)

    def refuse_endless(self) -> None:
        """UsageError if what fits is so little that chunks and panels would come again and again."""
        for share in self.shares:
            in_slabs = 0 if share.in_slabs else len(share.column_panels) * len(share.slabs)
            _refuse_many(self.problem, share.tiling.loads(len(share.rows), self.problem.m) + in_slabs)

    @property
    def adds(self) -> bool:
        """Some strips are added to C."""
        return bool(self.shares[0].slabs)

    @property
    def root_node(self) -> int:
        return self.topology.node_of(self.root)

    @property
    def why_no_peers(self) -> str:
        """Why the ranks of a node cannot take B from each other's devices; empty where they may."""
        if all(len(members) == 1 for members in self.topology.nodes):
            return "one rank a node: nothing to exchange"
        if self.resident and len(self.topology.nodes) > 1:
            return "rows of B lie on other nodes"
        return self._why_not_held

    @property
    def why_no_nccl(self) -> str:
        """Why NCCL cannot bring all ranks' rows of B to all devices, as far as the plan knows; empty where it may."""
        if self.topology.size == 1:
            return "one rank: nothing to exchange"
        if self.device != "cuda":
            return "NCCL joins GPUs only"
        return self._why_not_held

    @property
    def _why_not_held(self) -> str:
        if not all(share.holds_all for share in self.shares):
            return "not everything fits on the devices: what is needed is loaded as they go"
        if not all(len(share.rows) and share.column_panels for share in self.shares):
            return "some ranks have nothing to multiply"
        return ""

    def a_rows_on(self, node: int) -> Span:
        return self.topology.rows_of_node(node, self.problem.n)

    def c_rows_on(self, node: int) -> Span:
        """All of C on the root's node, where it ends; elsewhere the node's own rows."""
        return Span(0, self.problem.n) if node == self.root_node else self.a_rows_on(node)

    def c_rows_at_the_end(self, rank: int) -> Span:
        """Of C, the rows this rank checks and writes: of the gathered one a block for each rank of the root's node."""
        if self.resident:
            return self.shares[rank].rows
        members = self.topology.nodes[self.root_node]
        return block(self.problem.n, len(members), members.index(rank)) if rank in members else Span(0, 0)

    def b_rows_over_link(self, rank: int) -> Span:
        """The rows of B that this rank loads to its device: on the road "peers" for its node's ranks, on "nccl" for all."""
        if self.resident or self.transport == "nccl":
            return self.shares[rank].b_rows
        members = self.topology.nodes[self.topology.node_of(rank)]
        number, share = members.index(rank), self.shares[rank]
        if share.in_slabs:
            return Span(share.slabs[0][number].lo, share.slabs[-1][number].hi)
        return block(self.problem.l, len(members), number)

    def b_rows_on(self, node: int) -> Span:
        """The rows of B that the node's ranks share: all, but where each loads only those that it provides."""
        return self.b_rows_from(node) if self.transport == "nccl" else Span(0, self.problem.l)

    def b_rows_from(self, node: int) -> Span:
        """The rows of B that the ranks of this node provide."""
        return self.topology.rows_of_node(node, self.problem.l)

    @property
    def own_rows_suffice(self) -> bool:
        """Of resident operands: no rank loads other rows than its own. It is alone, or fetches the others' from their devices."""
        return self.topology.size == 1 or self.transport in ("peers", "nccl")

    def bytes_shared_on_node(self, node: int) -> int:
        """The matrices a node's ranks share. Of resident ones that is B, where it is not fetched from device to device."""
        p = self.problem
        if self.resident:
            return 0 if self.own_rows_suffice else p.bytes(p.l, p.m)
        return (
            p.bytes(len(self.a_rows_on(node)), p.l)
            + p.bytes(len(self.b_rows_on(node)), p.m)
            + p.bytes(len(self.c_rows_on(node)), p.m)
        )

    def bytes_of_buffers(self, rank: int) -> int:
        """What a rank's device holds of its own: chunks of A, panels of B, and C below them; nothing where it works in place."""
        return self.shares[rank].layout.bytes if self.staged else 0

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
        of_c = self.problem.bytes(len(self.shares[rank].rows), self.problem.m) if self.resident else 0
        return PROCESS_BYTES + buffers + of_c + self.bytes_of_check(rank)

    def bytes_on_node(self, node: int) -> int:
        return self.bytes_shared_on_node(node) + sum(self.bytes_on_rank(rank) for rank in self.topology.nodes[node])

    def bytes_on_gpu(self, rank: int) -> int:
        return self.bytes_of_buffers(rank) if self.device == "cuda" else 0


def _refuse_many(problem: Problem, pieces: int) -> None:
    if pieces > MOST_PIECES:
        raise UsageError(
            f"{problem} would come in {pieces:,} chunks and panels, more than {MOST_PIECES:,}: allow more memory or larger pieces"
        )


@lru_cache(maxsize=16)
def _panels_apart(shares: tuple[RankShare, ...], problem: Problem, device: str) -> tuple[RankShare, ...]:
    def apart(share: RankShare) -> RankShare:
        tiling = replace(share.tiling, apart=True)
        return replace(share, tiling=tiling, layout=layout_of(problem, len(share.rows), tiling, device), slabs=())

    return tuple(map(apart, shares))


@lru_cache(maxsize=16)
def make_plan(
    problem: Problem,
    topology: Topology,
    *,
    root: int = 0,
    device: str = "cpu",
    staged: bool = False,
    panel_rows: int = 0,
    panel_columns: int = 0,
    slab_rows: int = 0,
    adds: bool = False,
    device_memory: int = 0,
    check: bool = False,
    resident_rows: tuple[tuple[Span, ...], tuple[Span, ...]] | None = None,
) -> Plan:
    """Cut a product into row-blocks, chunks and panels or slabs. Zero for a size lets the plan choose it.

    `adds`: the kernel can add to C, so B may come in slabs. `device_memory`: bytes that each rank may take on its device; 0:
    as many as it needs. `resident_rows`: the rows of A and those of B that the ranks already have. Kept, since one product is
    often followed by others like it.
    """
    staged = staged or device != "cpu"
    ranks = range(topology.size)
    blocks = [topology.rows_of_rank(rank, problem.n) for rank in ranks]
    b_blocks = [topology.rows_of_rank(rank, problem.l) for rank in ranks]
    if resident_rows:
        blocks, b_blocks = map(list, resident_rows)
    tiling = choose_tiling(
        problem,
        max(map(len, blocks)),
        device=device,
        nodes=len(topology.nodes),
        links=0 if resident_rows else max(map(len, topology.nodes)),
        memory=device_memory if staged else 0,
        panel_rows=panel_rows,
        panel_columns=panel_columns,
        slab_rows=slab_rows,
        slabs=staged and adds and len(topology.nodes) == 1 and not resident_rows,
    )
    pieces_of_b = -(-problem.l // tiling.slab_rows) if tiling.slab_rows else tiling.column_panels_in(problem.m)
    _refuse_many(problem, -(-max(map(len, blocks)) // tiling.panel_rows) + pieces_of_b)
    column_panels = tiling.column_panels_of(problem.m, device)
    links = topology.size if tiling.interleaved else 1
    slabs = slabs_of(problem.l, links, tiling.slab_rows) if tiling.slab_rows and column_panels else ()
    shares = tuple(
        RankShare(
            rank,
            topology.node_of(rank),
            rows,
            b_blocks[rank],
            tiling.row_panels_of(len(rows), device),
            column_panels,
            tiling,
            layout_of(problem, len(rows), tiling, device),
            slabs,
        )
        for rank, rows in enumerate(blocks)
    )
    return Plan(
        problem, topology, root, device, staged, check, shares, resident=resident_rows is not None, device_memory=device_memory
    )
