# SPDX-License-Identifier: MIT
"""`scatter` and `gather`: redistribute a matrix between ranks by one MPI collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybrid.arrays.distributed import Block2D, Distributed, RowBlock, TransposedBlock2D, TransposedRowBlock, refuse_no_grid
from hybrid.arrays.gemm import is_number
from hybrid.arrays.interop import as_array, copy_back, on_gpu
from hybrid.arrays.root_operands import refuse_out
from hybrid.core.problem import Span, block, consecutive, record
from hybrid.core.settings import Settings
from hybrid.errors import UsageError
from hybrid.execution.session import Session, free_memory_of
from hybrid.planning.decision import same_on_all_ranks
from hybrid.planning.grid import Part, moves
from hybrid.planning.plan import shortage_of_matrix
from hybrid.ranks.messages import Matrices, copy_own, exchange
from hybrid.ranks.team import Team
from hybrid.verification.copies import verify_exchange

_KIND = "redistribute"
_KINDS = {RowBlock: "RowBlock", TransposedRowBlock: "transposed"} | dict.fromkeys((Block2D, TransposedBlock2D), "Block2D")


@record
class _Share:
    """One rank's part before, and the number of rows it wants.

    `kind`: one of `_KINDS`, "matrix" (at the root) or "nothing". `shape`: of this rank's rows (for a transposed RowBlock, before
    transposing); with `place`, of the whole matrix. `place`: a Block2D's part of the matrix.
    """

    kind: str
    shape: tuple[int, int]
    place: Part | None
    dtype: np.dtype
    wanted: int | None
    free: Any


def scattered(session: Session, a: Any, rows: int | None, root: int, stall: float | None = None) -> RowBlock:
    """This rank's rows of the root's matrix, or the ranks' RowBlocks or Block2Ds. `rows`: how many; None: equal shares."""
    own, shares, have, (height, width) = _agreed(session, "rows of a matrix (scatter)", a, root, rows, stall)
    is_transposed = isinstance(a, TransposedRowBlock)  # received as columns of the untransposed matrix
    want = _wanted(shares, width if is_transposed else height)
    down, across = Span(0, height), Span(0, width)
    parts = [Part((down,), (each,)) if is_transposed else Part((each,), (across,)) for each in want]
    array = _moved(session.team, shares, own, have, parts, None)
    return RowBlock(array.T if is_transposed else array, place=(want[session.team.rank].lo, want[-1].hi))


def _wanted(shares: Sequence[_Share], rows: int) -> list[Span]:
    """Each rank's rows of a matrix with `rows` rows. UsageError if the wanted numbers do not add up."""
    wanted = [share.wanted for share in shares]
    if None not in wanted:
        want = consecutive(each or 0 for each in wanted)
        if want[-1].hi != rows:
            raise UsageError(f"the ranks want {want[-1].hi} rows together, and the matrix has {rows}", code="rows")
        return want
    if set(wanted) != {None}:
        raise UsageError("rows is given on some ranks and not on others: on each, or on none for even shares", code="rows")
    return [block(rows, len(shares), rank) for rank in range(len(shares))]


def gathered(session: Session, a: Any, out: Any, root: int | None, stall: float | None) -> Any:
    """The whole matrix at the root (on every rank if `root` is None), in `out` if given; None elsewhere."""
    team, is_root, is_transposed = session.team, root in (None, session.team.rank), isinstance(a, TransposedRowBlock)
    call = "a whole matrix on every rank (gather)" if root is None else "a whole matrix (gather)"
    own, shares, have, shape = _agreed(session, call, a, root or 0, None, stall)
    if any(share.kind not in _KINDS.values() for share in shares):
        raise UsageError("gather takes a RowBlock or Block2D on every rank", code="mixed-kinds")
    into = None
    with team.phase("agree", timed=False):
        if is_root and out is not None:
            refuse_out(out, shape[::-1] if is_transposed else shape, shares[0].dtype, "matrix")
            if not on_gpu(out):
                into = out.T if is_transposed else out
    want = [Part((Span(0, shape[0] if root in (None, rank) else 0),), (Span(0, shape[1]),)) for rank in range(team.size)]
    matrix = _moved(team, shares, own, have, want, into)
    if not is_root:
        return None
    if into is None:
        matrix = matrix.T if is_transposed else matrix
        if out is None:
            return matrix
        copy_back(matrix, out)
    return out


def _agreed(
    session: Session, call: str, a: Any, root: int, rows: int | None, stall: float | None
) -> tuple[np.ndarray, list[_Share], list[Part], tuple[int, int]]:
    """This rank's elements in host memory, all ranks' shares and parts of the matrix, and its shape. UsageError on all ranks if
    they do not fit together."""
    team = session.team
    with team.phase("agree", timed=False) as agreeing:
        team.refuse_no_rank(root)
        if rows is not None and (type(rows) is not int or rows < 0):
            raise UsageError(f"rows={rows!r} is no number of rows", code="rows")
        kind = _KINDS.get(type(a), "nothing" if a is None or team.rank != root else "matrix")
        given = a.T.array if isinstance(a, TransposedRowBlock) else a.array if isinstance(a, Distributed) else a
        place = a.part if isinstance(a, Block2D) else None
        own = np.empty((0, 0)) if kind == "nothing" else as_array(given, "a")
        if own.ndim != 2:
            raise UsageError(f"a must have two dimensions, not {own.ndim}", code="dimensions")
        if not is_number(own.dtype):
            raise UsageError(f"a has elements of {own.dtype}, and only numbers are distributed", code="no-numbers")
        free = free_memory_of(session, Settings.gather({"stall": stall}), None, now=True)
        shape = a.shape if place else own.shape
        agreeing.mine = ({"kind": call, "root": root}, _Share(kind, shape, place, own.dtype, rows, free))
    same_on_all_ranks([said[0] for said in agreeing.all])
    shares: list[_Share] = [said[1] for said in agreeing.all]
    kinds = {share.kind for share in shares}
    if len(kinds) == 1 and shares[0].kind in _KINDS.values():
        if len({(share.shape if share.place else share.shape[1], share.dtype) for share in shares}) > 1:
            what = "Block2Ds differ in their shapes" if shares[0].place else "RowBlocks differ in their columns"
            raise UsageError(f"the ranks' {what} or types", code="ranks-differ")
    elif kinds.intersection(_KINDS.values()) or shares[root].kind != "matrix":
        raise UsageError("a is a matrix at the root and None elsewhere, or distributed on every rank", code="mixed-kinds")
    if places := [share.place for share in shares if share.place is not None]:
        refuse_no_grid("a", places, shares[0].shape)
        return own, shares, places, shares[0].shape
    spans, width = consecutive(share.shape[0] for share in shares), max(share.shape[1] for share in shares)
    return own, shares, [Part((span,), (Span(0, width),)) for span in spans], (spans[-1].hi, width)


def _moved(
    team: Team, shares: Sequence[_Share], own: np.ndarray, have: Sequence[Part], want: Sequence[Part], out: np.ndarray | None
) -> np.ndarray:
    """This rank's part `want[rank]`, in `out` if given. `own`: its part `have[rank]`. DoesNotFit if a node's memory is short."""
    dtype, rank = next(share for share in shares if share.kind != "nothing").dtype, team.rank
    for node in team.topology.nodes:
        needed = sum(want[each].elements for each in node) * dtype.itemsize
        if missing := shortage_of_matrix(needed, [shares[each].free for each in node]):
            raise missing
    team.enter("allocate")
    # The MPI datatypes allow a row stride, but need contiguous rows.
    takes = out is not None and _rows_are_contiguous(out) and not np.may_share_memory(out, own)
    into = out if takes and out is not None else np.empty(want[rank].shape, dtype)
    own = own if _rows_are_contiguous(own) else np.ascontiguousarray(own)
    sends = {each: [own[here] for here, _ in moves(have[rank], part)] for each, part in enumerate(want)}
    receives = {each: [into[there] for _, there in moves(part, want[rank])] for each, part in enumerate(have)}
    move(team, "exchange", sends, receives)
    if out is not None and into is not out:
        out[...] = into
    return into if out is None else out


def move(team: Team, phase: str, sends: Matrices, receives: Matrices, what: str = "") -> None:
    """Exchange matrices between all ranks by one MPI collective.

    `what`: the name of the data in the CheckFailed that all ranks raise if it arrives changed; empty: do not compare.
    """
    if team.size == 1:
        copy_own(sends, receives, team.rank)
        return
    team.carry_out(phase, _KIND, range(team.size), [exchange(sends, receives, team.rank)], timed=False)
    if what:
        sent, received = ({rank: each for rank, each in some.items() if rank != team.rank} for some in (sends, receives))
        verify_exchange(team, what, sent, received, threads=1)


def _rows_are_contiguous(matrix: np.ndarray) -> bool:
    return matrix.strides[1] == matrix.itemsize and matrix.strides[0] >= 0
