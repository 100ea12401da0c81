# SPDX-License-Identifier: MIT
"""Checksums of copies to and from devices and of messages between ranks.

The check of a product reads the matrices after they were copied, so it cannot find a wrong copy. So each copied piece has a
checksum at its source and one at its destination, made of the checksums of its rows (hybrid.devices.row_sums), and these are
compared. A message between ranks has one checksum at each end.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np

from hybrid.arrays.root_operands import MatrixSource, RootMatrix
from hybrid.core.problem import Problem, Span, record
from hybrid.devices.base import Device, Event
from hybrid.devices.check_operations import check_kernel, check_matrices
from hybrid.devices.row_sums import ALL, RowChecksums, RowsToSum, Sample, all_row_checksums, checksum_weights, mixed_total
from hybrid.errors import CheckFailed
from hybrid.host.memory import RowView
from hybrid.host.threads import CALL_BYTES, on_threads, rows_of_about
from hybrid.planning.plan import Plan
from hybrid.planning.schedule import Arrival, CheckLayout, Piece, Place, Tile
from hybrid.ranks.team import Team
from hybrid.verification.check import Fault, Sums, Suspect


class PiecesOfRanks(list[CheckLayout]):
    """The pieces of all ranks, by rank."""

    @cached_property
    def numbers(self) -> list[np.ndarray]:
        """For each rank, the place number of each of its pieces. Pieces of several ranks with the same number are the same part
        of a matrix."""
        known: dict[Place, int] = {}
        return [
            np.array([known.setdefault(place, len(known)) for place in (piece.place for piece in each.pieces)], np.intp)
            for each in self
        ]

    @cached_property
    def how_many(self) -> int:
        """The number of different places."""
        return 1 + max((int(of_rank.max()) for of_rank in self.numbers if len(of_rank)), default=-1)


def named(place: Place) -> str:
    operand, rows, columns = place
    return f"rows {rows}, columns {columns} of {operand}"


# By rank: the numbers of its pieces that were summed in host memory, and an array with a checksum for each of its pieces, 0 for
# those not summed.
InMemory = dict[int, tuple[list[int], np.ndarray]]


@record
class Findings:
    """One rank's results of the check of one product."""

    where: str  # rank, host and GPU, for messages
    sums: Sums | None  # None: it multiplied nothing
    on_device: np.ndarray  # the checksums of its pieces, made on its device
    in_memory: InMemory
    suspects: tuple[Suspect, ...] = ()
    all_told: bool = False  # unless the product is exact, only the suspects look wrong


def wrong_copies(findings: Sequence[Findings], pieces: PiecesOfRanks, root: int) -> list[Fault]:
    """One fault for each piece whose checksums differ. Its rank is the one with the wrong device, or None for a wrong message
    between nodes."""
    of_all, is_summed = np.zeros(pieces.how_many, np.uint64), np.zeros(pieces.how_many, bool)
    right = True  # the usual case, found without naming pieces, which takes longer
    for found in findings:
        for rank, (summed, checksums) in found.in_memory.items():
            places, of_places = pieces.numbers[rank][summed], checksums[summed]
            right = right and not (is_summed[places] & (of_all[places] != of_places)).any()
            of_all[places], is_summed[places] = of_places, True
    on_devices = [(found, places) for found, places in zip(findings, pieces.numbers, strict=True) if len(found.on_device)]
    if right and all(is_summed[places].all() and (of_all[places] == found.on_device).all() for found, places in on_devices):
        return []
    seen: dict[Place, dict[int, int]] = {}  # checksums in host memory, by place and by the rank that made them
    sources: dict[Place, int] = {}  # the rank that sent the piece: for C the one that multiplied, else the root
    for finder, found in enumerate(findings):
        for rank, (summed, checksums) in found.in_memory.items():
            for place, checksum in ((pieces[rank].pieces[number].place, int(checksums[number])) for number in summed):
                seen.setdefault(place, {})[finder] = checksum
                sources.setdefault(place, rank if place[0] == "C" else root)
    wrong: dict[str, Fault] = {}
    for place, known in seen.items():
        source = sources[place] if sources[place] in known else next(iter(known))
        of_source = f"as they are on {findings[source].where}"
        for finder in (finder for finder, checksum in known.items() if checksum != known[source]):
            text = f"{named(place)} did not reach {findings[finder].where} {of_source}"
            wrong.setdefault(text, Fault(text, "check-exchange"))
    for rank, (found, of_rank) in enumerate(zip(findings, pieces, strict=True)):
        on_device = found.on_device.tolist()
        for piece, checksum in zip(of_rank.pieces, on_device, strict=bool(on_device)):
            place = piece.place
            way = "left" if place[0] == "C" else "reached"
            if place not in seen:
                text = f"{named(place)} never {way} the device of {found.where}"
            elif checksum not in seen[place].values():
                text = f"{named(place)} {way} the device of {found.where} with other values than they have in memory"
            else:
                continue
            wrong[text] = Fault(text, "check-copy", rank)
    return list(wrong.values())


_BUSY_THREADS = 2  # get cores of their own: the one that submits the copies, and the one that waits for them


class CopyChecksums:
    """Checksums at the host's end of this rank's H2D and D2H copies, made while its GPU copies and multiplies. Threads sum arrays
    in host memory, and the GPU sums arrays that it holds itself.

    One object serves all products of a plan, one after the other, each from `begin` to `results` or `abandon`.
    """

    def __init__(
        self,
        problem: Problem,
        pieces: Mapping[int, CheckLayout],
        device: Device,
        own: Mapping[int, Container[int]],
        origin: int,
        threads: int,
    ) -> None:
        """`pieces`: by rank, for each rank whose copies this rank makes: itself, or all if the root copies its arrays to all
        devices. `own`: by rank, the numbers of the pieces of A and B to sum here; ranks that copy the same piece of B divide this
        work. `origin`: the row of the matrix that is the first of A and C in memory. `threads`: of this rank."""
        self._pieces, self._own, self._origin = pieces, own, origin
        self._device, self._threads = device, max(1, threads - _BUSY_THREADS)
        of_operands, of_c = problem.operand_item_size, problem.item_size
        widths = {"A": (problem.l, of_operands), "B": (problem.m, of_operands), "C": (problem.m, of_c)}
        self._weights = {matrix: checksum_weights(width, item) for matrix, (width, item) in widths.items()}
        self._matrices: tuple[Any, RowView, Any] | None = None
        self._has_host_rows = False
        self._by_threads: RowChecksums | None = None
        self._by_device: _DeviceChecksums | None = None
        # By rank, the checksums of all rows of its pieces, and of the pieces; 0 if not summed here.
        self._made = {
            rank: (np.zeros(each.checksums, np.uint64), np.zeros(len(each.pieces), np.uint64)) for rank, each in pieces.items()
        }
        self._summed: dict[int, dict[int, Piece]] = {rank: {} for rank in pieces}  # by rank and number, the pieces summed here
        self._begun, self._sample = False, ALL

    def use(self, matrices: tuple[Any, RowView, Any] | None) -> None:
        """Set the arrays of A, B and C for the next products. None drops the references."""
        self._matrices, self._by_threads = matrices, None
        if matrices is None:
            return
        a, b, c = matrices
        on_host = {isinstance(matrix, np.ndarray) for matrix in (a, b.array, c)}  # both: GPU row blocks may gather B on the host
        self._has_host_rows = True in on_host
        if False in on_host and self._by_device is None:
            self._by_device = _DeviceChecksums(self._device, self._weights, self._pieces)

    def sample(self, sample: Sample) -> None:
        """Set the cache lines of each piece to sum in the next products."""
        self._sample = sample
        if self._by_device is not None:
            self._by_device.sample(sample)

    def begin(self) -> None:
        """A product begins. The work is left to `_begin_once`, so that the first copies are submitted before."""
        self._begun = False

    def _begin_once(self) -> None:
        if self._begun:
            return
        self._begun = True
        self.abandon()
        for rank, (_, of_pieces) in self._made.items():
            self._summed[rank].clear()
            of_pieces[:] = 0
        if self._has_host_rows:
            self._by_threads = RowChecksums(self._threads, len(self._pieces), self._sample)
        if self._by_device is not None:
            self._by_device.begin()

    def abandon(self) -> None:
        """End a failed product. When this returns, no thread reads the matrices."""
        if self._by_threads is not None:
            self._by_threads.abandon()

    def loaded(self, rank: int, arrival: Arrival, event: Event) -> None:
        """Sum the source of a copy to a rank's device, after the event, when the copy is complete. Summing earlier would slow the
        copy, which would read data from cores' caches."""
        self._begin_once()
        summed, own = self._summed[rank], self._own[rank]
        for piece in self._pieces[rank].pieces_of(arrival):
            if piece.number in own and piece.number not in summed:
                self._sum(rank, piece, event)

    def stored(self, rank: int, tile: Tile, event: Event) -> None:
        """Sum a rank's tile in memory, after the event."""
        self._begin_once()
        for piece in self._pieces[rank].pieces_of(tile):
            self._sum(rank, piece, event)

    def results(self) -> InMemory:
        """The checksums, to be called after `loaded` and `stored` for all copies, when these are complete."""
        self._begin_once()
        if self._by_threads is not None:
            self._by_threads.wait()
        if self._by_device is not None:
            self._by_device.write_to(self._made)
        return {rank: (list(self._summed[rank]), of_pieces.copy()) for rank, (_, of_pieces) in self._made.items()}

    def _sum(self, rank: int, piece: Piece, event: Event) -> None:
        self._summed[rank][piece.number] = piece
        assert self._matrices is not None
        a, b, c = self._matrices
        matrix, origin = {"A": (a, self._origin), "B": (b.array, b.rows.lo), "C": (c, self._origin)}[piece.operand]
        first = piece.first - origin  # the array's row that is the piece's first
        if self._by_device is not None and not isinstance(matrix, np.ndarray):
            self._by_device.sum(rank, piece, matrix, first, event)
            return
        assert self._by_threads is not None
        of_rows, of_pieces = self._made[rank]
        rows, weights = Span(first, first + len(piece.rows)), self._weights[piece.operand]
        into = of_rows, piece.offset, of_pieces, piece.number, piece.first
        self._by_threads.sum(RowsToSum(piece.operand, matrix, rows, piece.columns, weights, *into), event, self._device, rank)


class _DeviceChecksums:
    """Checksums of arrays on the GPU, made by that GPU. `begin` clears those of the product before."""

    def __init__(self, device: Device, weights: Mapping[str, np.ndarray], pieces: Mapping[int, CheckLayout]) -> None:
        self._device = device
        sizes = [each.checksums for each in pieces.values()]
        self._first = dict(zip(pieces, np.cumsum([0, *sizes]).tolist(), strict=False))
        shapes = {f"weights of {key}": (1, len(each)) for key, each in weights.items()}
        made = check_matrices(device, {**shapes, "all": (3, sum(sizes)), "sample": (1, 2)})
        self._weights = {key: made[f"weights of {key}"] for key in weights}
        for key, each in weights.items():
            device.write(self._weights[key], each[None, :])
        self._clear, self._of_sample = device.clearing(made["all"], 0), made["sample"]
        # Each row's checksum, and the other results of row_sums, which nobody reads.
        self._checksums, self._largest, self._squares = (made["all"][part].reshape(-1, 1) for part in range(3))
        self._checksums = self._checksums.view("uint64")
        self._summed: dict[tuple[int, int], Piece] = {}  # by rank and number

    def sample(self, sample: Sample) -> None:
        self._device.write(self._of_sample, sample.words)

    def begin(self) -> None:
        self._summed.clear()
        self._device.launch([self._clear], [], "check")

    def sum(self, rank: int, piece: Piece, matrix: Any, first: int, event: Event) -> None:
        self._summed[rank, piece.number] = piece
        count, begin = len(piece.rows), self._first[rank] + piece.offset
        rows, there = matrix[first : first + count, piece.columns.slice], slice(begin, begin + count)
        weights, squares = self._weights[piece.operand][:, piece.columns.slice], self._squares[there]
        into = squares, squares, self._largest[there], self._checksums[there], self._of_sample
        call = check_kernel(self._device, "row_sums", rows, weights, weights, *into)
        self._device.launch([call], [event], "check")

    def write_to(self, made: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> None:
        of_all = self._device.read(self._checksums)[:, 0]
        for (rank, number), piece in self._summed.items():
            (of_rows, of_pieces), first = made[rank], self._first[rank] + piece.offset
            of_piece = of_all[first : first + len(piece.rows)]
            of_rows[piece.offset : piece.offset + len(piece.rows)] = of_piece
            of_pieces[number] = mixed_total(of_piece, piece.first)


def sums_of_other_nodes(
    team: Team,
    plan: Plan,
    operands: tuple[MatrixSource, MatrixSource],
    views: Mapping[str, RowView],
    threads: int,
    pieces: Sequence[CheckLayout],
    sample: Sample,
) -> InMemory:
    """Checksums on the root's node of pieces of other nodes' ranks. Compared with those ranks' own checksums, they show whether
    sending the operands or gathering C changed anything.

    The root sums the pieces that it sent from its own arrays. The ranks of its node divide the pieces of C, and of B if gathered
    there. Ranks of other nodes return nothing. `views`: by "A", "B" and "C", the rows in the node's memory.
    """
    found: InMemory = {}
    if team.node != plan.root_node:
        return found
    sources = dict(zip("AB", operands, strict=True))
    sent = {key for key, source in sources.items() if isinstance(source, RootMatrix)}  # by the root, from its own arrays
    done: set[Place] = {piece.place for rank in team.node_ranks for piece in pieces[rank].pieces if piece.operand not in sent}
    for rank in range(team.size):
        if rank in team.node_ranks:
            continue
        checksums, mine = np.zeros(len(pieces[rank].pieces), np.uint64), []
        for piece in pieces[rank].pieces:
            if piece.place in done:
                continue
            done.add(piece.place)
            rows = _own_rows(team, plan, sources, views, piece)
            if rows is not None:
                weights = checksum_weights(plan.problem.l if piece.operand == "A" else plan.problem.m, plan.problem.item_size)
                of_rows = np.empty(len(piece.rows), np.uint64)
                all_row_checksums(rows, weights[piece.columns.slice], of_rows, sample, threads, plan.problem.dtype)
                checksums[piece.number] = mixed_total(of_rows, piece.first)
                mine.append(piece.number)
        found[rank] = mine, checksums
    return found


def _own_rows(
    team: Team, plan: Plan, sources: Mapping[str, MatrixSource], views: Mapping[str, RowView], piece: Piece
) -> np.ndarray | None:
    """This rank's source of a piece that was sent to another node; None if another rank sums it or this node does not have it."""
    operand, rows, columns = piece.place
    source = sources.get(operand)
    if isinstance(source, RootMatrix):
        return source.array[rows.slice, columns.slice] if team.rank == plan.root else None
    view = views[operand]
    if not rows.lies_in(view.rows) or team.node_ranks[piece.number % len(team.node_ranks)] != team.rank:
        return None
    matrix: np.ndarray = view[rows][:, columns.slice]
    return matrix


def checksum(matrix: np.ndarray, threads: int, dtype: str | None = None) -> int:
    """One checksum of all elements, of any type, converted to `dtype`, and of their order. A CRC, since changes of neighbouring
    elements, of their signs say, may cancel in a sum."""
    if not matrix.size:
        return 0
    rows = matrix.reshape(len(matrix), -1)

    def of_part(part: Span) -> int:
        elements = np.ascontiguousarray(rows[part.slice], dtype).view(np.uint8)
        return int(mixed_total(np.array([crc32(elements.data)], np.uint64), part.lo))

    parts = rows_of_about(CALL_BYTES, Span(0, len(rows)), rows.shape[1] * np.dtype(dtype or rows.dtype).itemsize)
    return sum(on_threads(threads, of_part, parts)) % (1 << 64)


def verify_exchange(
    team: Team,
    name: str,
    sent: Mapping[int, Sequence[np.ndarray]],
    received: Mapping[int, Sequence[np.ndarray]],
    threads: int,
    dtype: str | None = None,
) -> None:
    """Collective: raise CheckFailed on all ranks if a rank received other elements than were sent to it.

    `name`: of the matrix, for the message. `sent`, `received`: by the other rank, the blocks in the order of sending, compared
    as `dtype`, or else as their own type.
    """
    with team.phase("check") as comparing:
        comparing.mine = [
            {rank: [checksum(block, threads, dtype) for block in of_rank] for rank, of_rank in blocks.items() if of_rank}
            for blocks in (sent, received)
        ]
    for to, (_, arrived) in enumerate(comparing.all):
        for source, checksums in arrived.items():
            if comparing.all[source][0].get(to) != checksums:
                raise CheckFailed(
                    f"{name} did not reach rank {to} as rank {source} has it: check the network and MPI", code="check-exchange"
                )
