# SPDX-License-Identifier: MIT
"""Rows of a matrix from the ranks that have them to the ranks that shall have them, in one of MPI's collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from hybrid.arrays.interop import as_matrix
from hybrid.arrays.operand_checks import refuse_out
from hybrid.arrays.product_type import is_number
from hybrid.arrays.row_block import RowBlock
from hybrid.arrays.transposed_row_block import TransposedRowBlock
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, block
from hybrid.errors import DoesNotFit, UsageError
from hybrid.execution.calls import refuse_no_rank
from hybrid.plan.capacity import shortage_of_matrix
from hybrid.ranks.collectives import Series, exchange
from hybrid.ranks.team import Team
from hybrid.selection.inventory import free_memory_of, same_on_all_ranks
from hybrid.selection.session import Session

_KIND = "redistribute"
_KINDS: dict[type, str] = {RowBlock: "RowBlock", TransposedRowBlock: "transposed"}


@dataclass(frozen=True)
class _Part:
    """What one rank has, and how many rows it wants. `kind`: "RowBlock", "transposed" (one), "matrix" (of the root alone) or
    "nothing"; `shape`: of its rows."""

    kind: str
    shape: tuple[int, int]
    dtype: np.dtype
    wanted: int | None
    free: Any


def scattered(session: Session, a: Any, rows: int | None, root: int, stall: float | None = None) -> RowBlock:
    """This rank's rows of the root's matrix, or of all ranks' RowBlocks; `rows`: how many, None for an even share."""
    own, parts = _agreed(session, "rows of a matrix (scatter)", a, root, rows, stall)
    have = _spans([part.shape[0] for part in parts])
    if isinstance(a, TransposedRowBlock):
        want = _wanted(parts, parts[0].shape[1])
        array = _transposed(session.team, parts, own, have, want)
    else:
        want = _wanted(parts, have[-1].hi)
        array = _moved(session.team, parts, own, have, want, None)
    return RowBlock(array, first_row=want[session.team.rank].lo)


def _wanted(parts: Sequence[_Part], rows: int) -> list[Span]:
    """Which of so many rows each rank wants."""
    wanted = [part.wanted for part in parts]
    if None not in wanted:
        want = _spans([each or 0 for each in wanted])
        if want[-1].hi != rows:
            raise UsageError(f"the ranks want {want[-1].hi} rows together, and the matrix has {rows}")
        return want
    if set(wanted) != {None}:
        raise UsageError("rows is given on some ranks and not on others: on each, or on none for even shares")
    return [block(rows, len(parts), rank) for rank in range(len(parts))]


def gathered(session: Session, a: Any, out: np.ndarray | None, root: int, stall: float | None = None) -> np.ndarray | None:
    """The whole matrix at the root, None elsewhere."""
    own, parts = _agreed(session, "a whole matrix (gather)", a, root, None, stall)
    have = _spans([part.shape[0] for part in parts])
    if any(part.kind not in ("RowBlock", "transposed") for part in parts):
        raise UsageError("gather takes a RowBlock on every rank")
    is_transposed = isinstance(a, TransposedRowBlock)
    n, m = have[-1].hi, parts[0].shape[1]
    shape = (m, n) if is_transposed else (n, m)
    want = [Span(0, n) if rank == root else Span(n, n) for rank in range(len(parts))]
    team = session.team
    with team.phase("agree", timed=False):
        if team.rank == root and out is not None:
            refuse_out(out, shape, parts[0].dtype, "matrix")
    into = out if team.rank == root else None
    if is_transposed:  # whose columns are gathered as the rows that they are
        c = _moved(team, parts, own, have, want, into.T if into is not None else None).T
    else:
        c = _moved(team, parts, own, have, want, into)
    return (c if into is None else into) if team.rank == root else None


def _agreed(
    session: Session, call: str, a: Any, root: int, rows: int | None, stall: float | None
) -> tuple[np.ndarray, list[_Part]]:
    """This rank's rows in host memory, and what all ranks have. The same UsageError on all ranks where that does not fit."""
    team = session.team
    with team.phase("agree", timed=False) as agreeing:
        refuse_no_rank(team, root)
        if rows is not None and (type(rows) is not int or rows < 0):
            raise UsageError(f"rows={rows!r} is no number of rows")
        kind = _KINDS.get(type(a), "nothing" if a is None or team.rank != root else "matrix")
        given = a.rows.array if isinstance(a, TransposedRowBlock) else a.array if isinstance(a, RowBlock) else a
        own = np.empty((0, 0)) if kind == "nothing" else as_matrix(given, "a")
        if not is_number(own.dtype):
            raise UsageError(f"a has elements of {own.dtype}, and only numbers are distributed")
        settings = Settings.gather({"stall": stall})
        free = free_memory_of(session, settings, None, now=True)
        agreeing.mine = ({"kind": call, "root": root}, _Part(kind, own.shape, own.dtype, rows, free))
    same_on_all_ranks([said[0] for said in agreeing.all])
    parts: list[_Part] = [said[1] for said in agreeing.all]
    kinds = {part.kind for part in parts}
    if kinds in ({"RowBlock"}, {"transposed"}):
        if len({(part.shape[1], part.dtype) for part in parts}) > 1:
            raise UsageError("the ranks' RowBlocks differ in their columns or types")
    elif kinds.intersection(_KINDS.values()) or parts[root].kind != "matrix":
        raise UsageError("a is the matrix at the root and None elsewhere, or a RowBlock on every rank")
    return own, parts


def _moved(
    team: Team, parts: Sequence[_Part], own: np.ndarray, have: Sequence[Span], want: Sequence[Span], out: np.ndarray | None
) -> np.ndarray:
    """This rank's rows `want[rank]`, in `out` where it is given."""
    first = next(part for part in parts if part.kind != "nothing")
    dtype, columns, rank = first.dtype, first.shape[1], team.rank
    _prepare(team, parts, [len(rows) * columns * dtype.itemsize for rows in want])
    with team.phase("allocate", timed=False):
        # Rows may lie apart, but each is contiguous, as MPI's datatypes have them.
        takes = out is not None and _rows_are_contiguous(out) and not np.may_share_memory(out, own)
        into = out if takes and out is not None else np.empty((len(want[rank]), columns), dtype)
        own = own if _rows_are_contiguous(own) else np.ascontiguousarray(own)
        to = {each: [own[have[rank].common(want[each]).within(have[rank]).slice]] for each in _others(have[rank], want)}
        taken = {each: [into[want[rank].common(have[each]).within(want[rank]).slice]] for each in _others(want[rank], have)}
        if team.size == 1:
            into[...] = own
        series = exchanged(team, to, taken)
    with team.phase("exchange", timed=False):
        if series is not None:
            series.wait_until_complete()
        if out is not None and into is not out:
            out[...] = into
    return into if out is None else out


def _transposed(team: Team, parts: Sequence[_Part], own: np.ndarray, have: Sequence[Span], want: Sequence[Span]) -> np.ndarray:
    """This rank's rows `want[rank]` of the transpose: the matrix' columns, of which each rank has the elements of its rows. They
    are received as columns, in row-major order, and are rows of a view."""
    dtype, rank = parts[0].dtype, team.rank
    _prepare(team, parts, [have[-1].hi * len(rows) * dtype.itemsize for rows in want])
    with team.phase("allocate", timed=False):
        into = np.empty((have[-1].hi, len(want[rank])), dtype)
        own = own if _rows_are_contiguous(own) else np.ascontiguousarray(own)
        if team.size == 1:
            into[...] = own
        to = {each: [own[:, rows.slice]] for each, rows in enumerate(want) if own.size and len(rows)}
        taken = {each: [into[rows.slice]] for each, rows in enumerate(have) if len(rows) and into.size}
        series = exchanged(team, to, taken)
    with team.phase("exchange", timed=False):
        if series is not None:
            series.wait_until_complete()
    return into.T


def _prepare(team: Team, parts: Sequence[_Part], needed: Sequence[int]) -> None:
    """Before an exchange of which each rank takes so many bytes: DoesNotFit where a node has no room for its ranks'."""
    for node in team.topology.nodes:
        of_node = sum(needed[each] for each in node)
        if missing := shortage_of_matrix(of_node, [parts[each].free for each in node], shared=False):
            raise DoesNotFit(missing)
    connect(team)


def connect(team: Team) -> None:
    """Before the first `exchanged` between these ranks. Every rank calls it."""
    if team.size > 1 and not team.messages.collectives.is_connected(_KIND, range(team.size)):
        with team.phase("prepare", timed=False):
            pass  # a rank that fails before keeps no other one waiting inside MPI
        team.messages.collectives.connect(_KIND, range(team.size))


def exchanged(team: Team, to: Mapping[int, Sequence[np.ndarray]], taken: Mapping[int, Sequence[np.ndarray]]) -> Series | None:
    """A series of one collective, in which each rank sends matrices to others, and takes theirs; None where there are no others.
    Every rank calls it, in a phase, and waits for it in the next."""
    if team.size == 1:
        return None
    return team.messages.collectives.series(_KIND, range(team.size), [exchange(to, taken, team.rank)])


def _rows_are_contiguous(matrix: np.ndarray) -> bool:
    return matrix.strides[1] == matrix.itemsize and matrix.strides[0] >= 0


def _spans(sizes: Sequence[int]) -> list[Span]:
    return [Span(*bounds) for bounds in pairwise(accumulate(sizes, initial=0))]


def _others(mine: Span, spans: Sequence[Span]) -> list[int]:
    """Of the spans those that have something of `mine`: by rank, also its own."""
    return [rank for rank, span in enumerate(spans) if span.meets(mine)]
