# SPDX-License-Identifier: MIT
"""Rows of a matrix from the ranks that have them to the ranks that shall have them, in one of MPI's collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from hybrid.arrays.interop import as_matrix
from hybrid.arrays.row_block import RowBlock
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, block
from hybrid.errors import DoesNotFit, UsageError
from hybrid.execution.calls import refuse_no_rank
from hybrid.plan.capacity import shortage_of_matrix
from hybrid.ranks.collectives import Series, exchange
from hybrid.ranks.team import Team
from hybrid.selection.inventory import free_memory_of
from hybrid.selection.session import Session

_KIND = "redistribute"


@dataclass(frozen=True)
class _Part:
    """What one rank has, and how many rows it wants. `kind`: "RowBlock", "matrix" (of the root alone) or "nothing"."""

    kind: str
    shape: tuple[int, int]
    dtype: str
    wanted: int | None
    root: int
    free: Any


def scattered(session: Session, a: Any, rows: int | None, root: int) -> RowBlock:
    """This rank's rows of the root's matrix, or of all ranks' RowBlocks; `rows`: how many, None for an even share."""
    own, parts = _agreed(session, a, root, rows)
    have = _spans([part.shape[0] for part in parts])
    wanted = [part.wanted for part in parts]
    if None in wanted:
        if set(wanted) != {None}:
            raise UsageError("rows is given on some ranks and not on others: on each, or on none for even shares")
        want = [block(have[-1].hi, len(parts), rank) for rank in range(len(parts))]
    else:
        want = _spans([part.wanted or 0 for part in parts])
        if want[-1].hi != have[-1].hi:
            raise UsageError(f"the ranks want {want[-1].hi} rows together, and the matrix has {have[-1].hi}")
    return RowBlock(_moved(session.team, parts, own, have, want, None))


def gathered(session: Session, a: Any, out: np.ndarray | None, root: int) -> np.ndarray | None:
    """The whole matrix at the root, None elsewhere."""
    own, parts = _agreed(session, a, root, None)
    have = _spans([part.shape[0] for part in parts])
    if any(part.kind != "RowBlock" for part in parts):
        raise UsageError("gather takes a RowBlock on every rank")
    n, m = have[-1].hi, parts[0].shape[1]
    want = [Span(0, n) if rank == root else Span(n, n) for rank in range(len(parts))]
    team = session.team
    with team.phase("agree", timed=False):
        fits = isinstance(out, np.ndarray) and (out.shape, out.dtype.str) == ((n, m), parts[0].dtype) and out.flags.writeable
        if team.rank == root and out is not None and not fits:
            raise UsageError(f"out must be a writable array of {n}×{m} elements of {np.dtype(parts[0].dtype)}")
    c = _moved(team, parts, own, have, want, out if team.rank == root else None)
    return c if team.rank == root else None


def _agreed(session: Session, a: Any, root: int, rows: int | None) -> tuple[np.ndarray, list[_Part]]:
    """This rank's rows in host memory, and what all ranks have. The same UsageError on all ranks where that does not fit."""
    team = session.team
    with team.phase("agree", timed=False) as agreeing:
        refuse_no_rank(team, root)
        if rows is not None and (type(rows) is not int or rows < 0):
            raise UsageError(f"rows={rows!r} is no number of rows")
        kind = "RowBlock" if isinstance(a, RowBlock) else "nothing" if a is None or team.rank != root else "matrix"
        own = np.empty((0, 0)) if kind == "nothing" else as_matrix(a.array if isinstance(a, RowBlock) else a, "a")
        if own.dtype.hasobject:
            raise UsageError(f"a has elements of {own.dtype}, which are Python's and no numbers that MPI could send")
        settings = Settings.gather({})
        free = free_memory_of(session, settings, None, now=True)
        agreeing.mine = _Part(kind, own.shape, own.dtype.str, rows, root, free)
    parts: list[_Part] = agreeing.all
    if len({part.root for part in parts}) > 1:
        raise UsageError("the ranks name different roots")
    kinds = {part.kind for part in parts}
    if kinds == {"RowBlock"}:
        if len({(part.shape[1], part.dtype) for part in parts}) > 1:
            raise UsageError("the ranks' RowBlocks differ in their columns or types")
    elif "RowBlock" in kinds or parts[root].kind != "matrix":
        raise UsageError("a is the matrix at the root and None elsewhere, or a RowBlock on every rank")
    return own, parts


def _moved(
    team: Team, parts: Sequence[_Part], own: np.ndarray, have: Sequence[Span], want: Sequence[Span], out: np.ndarray | None
) -> np.ndarray:
    """This rank's rows `want[rank]`, in `out` where it is given."""
    first = next(part for part in parts if part.kind != "nothing")
    dtype, columns, rank = np.dtype(first.dtype), first.shape[1], team.rank
    for node in team.topology.nodes:
        needed = sum(len(want[each]) * columns * dtype.itemsize for each in node)
        if missing := shortage_of_matrix(needed, [parts[each].free for each in node], shared=False):
            raise DoesNotFit(missing)
    connect(team)
    with team.phase("allocate", timed=False):
        # Rows may lie apart, but each is contiguous, as MPI's datatypes have them.
        takes = out is not None and _rows_are_contiguous(out) and not np.may_share_memory(out, own)
        into = out if takes and out is not None else np.empty((len(want[rank]), columns), dtype)
        own = own if _rows_are_contiguous(own) else np.ascontiguousarray(own)
        to = {each: [own[have[rank].common(want[each]).within(have[rank]).slice]] for each in _others(have[rank], want)}
        taken = {each: [into[want[rank].common(have[each]).within(want[rank]).slice]] for each in _others(want[rank], have)}
        series = exchanged(team, to, taken)
        if series is None:
            into[...] = own
    with team.phase("exchange", timed=False):
        if series is not None:
            series.wait_until_complete()
        if out is not None and into is not out:
            out[...] = into
    return into if out is None else out


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
