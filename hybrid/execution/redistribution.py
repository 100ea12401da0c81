# SPDX-License-Identifier: MIT
"""Moves elements of a matrix from the ranks that have them to the ranks that shall have them, by one of MPI's collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid.arrays.block_2d import Block2D
from hybrid.arrays.blocks_of_product import refuse_no_grid
from hybrid.arrays.distributed import Distributed
from hybrid.arrays.interop import as_matrix
from hybrid.arrays.operand_checks import refuse_out
from hybrid.arrays.product_type import is_number
from hybrid.arrays.row_block import RowBlock
from hybrid.arrays.transposed_row_block import TransposedRowBlock
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, block, consecutive
from hybrid.errors import UsageError
from hybrid.execution.calls import refuse_no_rank
from hybrid.plan.capacity import shortage_of_matrix
from hybrid.plan.rectangles import Part, Rectangle
from hybrid.ranks.collectives import Series, copy_own, exchange
from hybrid.ranks.team import Team
from hybrid.selection.inventory import free_memory_of, same_on_all_ranks
from hybrid.selection.session import Session

_KIND = "redistribute"
_KINDS: dict[type, str] = {RowBlock: "RowBlock", TransposedRowBlock: "transposed", Block2D: "Block2D"}


@dataclass(frozen=True)
class _Share:
    """What one rank has, and how many rows it wants.

    `kind`: one of `_KINDS`, "matrix" (which the root alone has) or "nothing". `shape`: of the rows that it has; or of the whole
    matrix where `place` says which part of that it has.
    """

    kind: str
    shape: tuple[int, int]
    place: Part | None
    dtype: np.dtype
    wanted: int | None
    free: Any


def scattered(session: Session, a: Any, rows: int | None, root: int, stall: float | None = None) -> RowBlock:
    """This rank's rows of the root's matrix, or of all ranks' RowBlocks or Block2Ds. `rows`: how many this rank wants; None for
    equal shares."""
    own, parts = _agreed(session, "rows of a matrix (scatter)", a, root, rows, stall)
    if isinstance(a, TransposedRowBlock):
        want = _wanted(parts, parts[0].shape[1])
        array = _transposed(session.team, parts, own, want)
    else:
        have, n = _places(parts)
        want = _wanted(parts, n)
        array = _moved(session.team, parts, own, have, want, None)
    return RowBlock(array, first_row=want[session.team.rank].lo)


def _wanted(parts: Sequence[_Share], rows: int) -> list[Span]:
    """The rows that each rank gets of a matrix that has so many. UsageError where those that the ranks want do not add up to
    them."""
    wanted = [part.wanted for part in parts]
    if None not in wanted:
        want = consecutive(each or 0 for each in wanted)
        if want[-1].hi != rows:
            raise UsageError(f"the ranks want {want[-1].hi} rows together, and the matrix has {rows}", code="rows")
        return want
    if set(wanted) != {None}:
        raise UsageError("rows is given on some ranks and not on others: on each, or on none for even shares", code="rows")
    return [block(rows, len(parts), rank) for rank in range(len(parts))]


def gathered(session: Session, a: Any, out: np.ndarray | None, root: int, stall: float | None) -> np.ndarray | None:
    """The whole matrix at the root, in `out` where that is given; None elsewhere."""
    own, parts = _agreed(session, "a whole matrix (gather)", a, root, None, stall)
    if any(part.kind not in _KINDS.values() for part in parts):
        raise UsageError("gather takes a RowBlock or Block2D on every rank", code="mixed-kinds")
    is_transposed = isinstance(a, TransposedRowBlock)
    (have, n), m = _places(parts), parts[0].shape[1]
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
) -> tuple[np.ndarray, list[_Share]]:
    """This rank's elements in host memory, and what all ranks have. The same UsageError on all ranks where that does not fit
    together."""
    team = session.team
    with team.phase("agree", timed=False) as agreeing:
        refuse_no_rank(team, root)
        if rows is not None and (type(rows) is not int or rows < 0):
            raise UsageError(f"rows={rows!r} is no number of rows", code="rows")
        kind = _KINDS.get(type(a), "nothing" if a is None or team.rank != root else "matrix")
        given = a.rows.array if isinstance(a, TransposedRowBlock) else a.array if isinstance(a, Distributed) else a
        place = a.part if isinstance(a, Block2D) else None
        own = np.empty((0, 0)) if kind == "nothing" else as_matrix(given, "a")
        if not is_number(own.dtype):
            raise UsageError(f"a has elements of {own.dtype}, and only numbers are distributed", code="no-numbers")
        settings = Settings.gather({"stall": stall})
        free = free_memory_of(session, settings, None, now=True)
        shape = a.shape if place else own.shape
        agreeing.mine = ({"kind": call, "root": root}, _Share(kind, shape, place, own.dtype, rows, free))
    same_on_all_ranks([said[0] for said in agreeing.all])
    parts: list[_Share] = [said[1] for said in agreeing.all]
    kinds = {part.kind for part in parts}
    if len(kinds) == 1 and parts[0].kind in _KINDS.values():
        if len({(part.shape if part.place else part.shape[1], part.dtype) for part in parts}) > 1:
            what = "Block2Ds differ in their shapes" if parts[0].place else "RowBlocks differ in their columns"
            raise UsageError(f"the ranks' {what} or types", code="ranks-differ")
    elif kinds.intersection(_KINDS.values()) or parts[root].kind != "matrix":
        raise UsageError(
            "a is the matrix at the root and None elsewhere, or a RowBlock or Block2D on every rank", code="mixed-kinds"
        )
    return own, parts


def _places(parts: Sequence[_Share]) -> tuple[list[Part], int]:
    """The part of the matrix that each rank has, and the number of rows. UsageError where Block2Ds do not make up a matrix."""
    if places := [part.place for part in parts if part.place is not None]:
        refuse_no_grid("a", places, parts[0].shape)
        return places, parts[0].shape[0]
    rows = consecutive(part.shape[0] for part in parts)
    return [Part((span,), (Span(0, part.shape[1]),)) for span, part in zip(rows, parts, strict=True)], rows[-1].hi


def _moved(
    team: Team, parts: Sequence[_Share], own: np.ndarray, have: Sequence[Part], want: Sequence[Span], out: np.ndarray | None
) -> np.ndarray:
    """This rank's rows `want[rank]`, in `out` where it is given. `have`: the part that each rank has."""
    first = next(part for part in parts if part.kind != "nothing")
    dtype, columns, rank = first.dtype, first.shape[1], team.rank
    wanted = [Rectangle(rows, Span(0, columns)) for rows in want]
    _prepare(team, parts, [each.elements * dtype.itemsize for each in wanted])
    with team.phase("allocate", timed=False):
        # Rows may lie apart, but each is contiguous, as MPI's datatypes have them.
        takes = out is not None and _rows_are_contiguous(out) and not np.may_share_memory(out, own)
        into = out if takes and out is not None else np.empty(wanted[rank].shape, dtype)
        own = own if _rows_are_contiguous(own) else np.ascontiguousarray(own)
        to = {each: [own[place] for _, place in have[rank].common(rows)] for each, rows in enumerate(wanted)}
        taken = {
            each: [into[rectangle.within(wanted[rank])] for rectangle, _ in part.common(wanted[rank])]
            for each, part in enumerate(have)
        }
        series = exchanged(team, to, taken)
    with team.phase("exchange", timed=False):
        if series is not None:
            series.wait_until_complete()
        if out is not None and into is not out:
            out[...] = into
    return into if out is None else out


def _transposed(team: Team, parts: Sequence[_Share], own: np.ndarray, want: Sequence[Span]) -> np.ndarray:
    """This rank's rows `want[rank]` of the transpose.

    They are the matrix's columns, of which each rank has the elements in its rows. They are received as columns, in row-major
    order, and are rows of a view.
    """
    dtype, rank, have = parts[0].dtype, team.rank, consecutive(part.shape[0] for part in parts)
    _prepare(team, parts, [have[-1].hi * len(rows) * dtype.itemsize for rows in want])
    with team.phase("allocate", timed=False):
        into = np.empty((have[-1].hi, len(want[rank])), dtype)
        own = own if _rows_are_contiguous(own) else np.ascontiguousarray(own)
        to = {each: [own[:, rows.slice]] for each, rows in enumerate(want) if own.size and len(rows)}
        taken = {each: [into[rows.slice]] for each, rows in enumerate(have) if len(rows) and into.size}
        series = exchanged(team, to, taken)
    with team.phase("exchange", timed=False):
        if series is not None:
            series.wait_until_complete()
    return into.T


def _prepare(team: Team, parts: Sequence[_Share], needed: Sequence[int]) -> None:
    """Prepare an exchange for which each rank needs so many bytes. DoesNotFit where a node has no room for its ranks'."""
    for node in team.topology.nodes:
        of_node = sum(needed[each] for each in node)
        if missing := shortage_of_matrix(of_node, [parts[each].free for each in node], shared=False):
            raise missing.error()
    connect(team)


def connect(team: Team) -> None:
    """Have what `exchanged` needs between these ranks. Every rank calls it before the first exchange."""
    if team.size > 1:
        team.connect(_KIND, range(team.size))


def exchanged(team: Team, to: Mapping[int, Sequence[np.ndarray]], taken: Mapping[int, Sequence[np.ndarray]]) -> Series | None:
    """A series of one collective, in which each rank sends matrices to others and receives theirs; None where there are no
    others.

    Every rank calls it in a phase, and waits for the series in the next.
    """
    if team.size == 1:
        copy_own(to, taken, team.rank)
        return None
    return team.messages.collectives.series(_KIND, range(team.size), [exchange(to, taken, team.rank)])


def _rows_are_contiguous(matrix: np.ndarray) -> bool:
    return matrix.strides[1] == matrix.itemsize and matrix.strides[0] >= 0
