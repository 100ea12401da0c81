# SPDX-License-Identifier: MIT
"""Freivalds' check of a rank's product on its device, and checksums of all copies to and from it.

For each group of columns, C·x is compared with A·(B·x), where x is random. B·x is summed when rows of B arrive, C·x when a tile
is computed, and A·(B·x) when all of B is there. If memory is short, A·(B·x) is summed when rows of A have been multiplied by all
of B, or before they are overwritten. This finds errors of the kernel. Checksums find errors of copies: each piece has one on the
device, to be compared with one made at the host's end of the copy.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybrid.core.problem import Problem, Span, merged, padded
from hybrid.devices.base import MOST_PLACES, Buffers, Device, Event, KernelCall, Place
from hybrid.devices.check_operations import check_kernel, check_matrices, compile_check
from hybrid.devices.row_sums import ALL, NOT_INTEGRAL, SAMPLE, Sample, checksum_weights
from hybrid.planning.schedule import NUMBERS_A_ROW, NUMBERS_TOGETHER, ROWS_TOGETHER, Arrival, CheckLayout, Piece, Tile
from hybrid.verification.check import (
    MOST_NAMED,
    MOST_SUSPECTS,
    THRESHOLD,
    Check,
    Fault,
    Sums,
    Suspect,
    comparison_numbers,
    errors_of_rows,
    is_exact,
    is_exact_product,
    random_x,
)
from hybrid.verification.copies import Findings, PiecesOfRanks, wrong_copies

_LEAST_BYTES = 32 << 20  # read by a batch: takes a GPU some ten microseconds, as long as a launch
_MOST_BATCHES = 8  # of a product; the last one delays its end


class Batches:
    """Operations of the check, enqueued several at a time by one call, to leave the host time for the product's copies and
    multiplications. The operations of a batch run one after the other. Each product has the same ones in the same order."""

    def __init__(self, device: Device, all_bytes: int) -> None:
        """`all_bytes`: read by all operations of a product."""
        self._device, self._most_bytes = device, max(_LEAST_BYTES, all_bytes // _MOST_BATCHES)
        self._made: dict[tuple[int, ...], tuple[list[KernelCall], KernelCall]] = {}  # by the operations' ids
        self.begin()

    def begin(self) -> None:
        self._last: list[Event] = []  # the event of the last batch on the queue "check"
        self._next()

    def _next(self) -> None:
        self._waiting: list[KernelCall] = []
        self._after: list[Event] = []
        self._bytes = 0

    def add(self, operation: KernelCall, after: Sequence[Event] = (), size: int = 0) -> None:
        """Enqueue an operation with the next batch, after these events. `size`: the bytes that it reads."""
        self._waiting.append(operation)
        self._after += after
        self._bytes += size
        if self._bytes >= self._most_bytes:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._last = [self._launch(self._after, "check")]

    def flush_beside(self) -> list[Event]:
        """Enqueue the batch on the queue "check beside", after all batches before it. Returns the event that marks its end."""
        if not self._waiting:
            return []
        return [self._launch([*self._last, *self._after], "check beside")]

    def _launch(self, after: list[Event], queue: str) -> Event:
        key = tuple(map(id, self._waiting))
        if key not in self._made:
            self._made[key] = self._waiting, self._device.together(self._waiting)
        event = self._device.launch([self._made[key][1]], after, queue)
        self._next()
        return event


class DeviceSums:
    """The device memory of a DeviceCheck: matrices of sums and checksums, by name, and views of them. Methods read it, and are
    called when the device is idle."""

    def __init__(self, device: Device, layout: CheckLayout, problem: Problem) -> None:
        self._device, self._layout, self._problem = device, layout, problem
        self._of_operands = [[piece.number for piece in layout.pieces if piece.operand == operand] for operand in "ABC"]
        rows, groups, checksums = len(layout.share.rows), layout.groups, layout.checksums
        # For each piece: the index of its first row checksum, their count, and its first row's number in the matrix.
        table = np.array([(each.offset, len(each.rows), each.first) for each in layout.pieces], np.uint64)
        table = table.reshape(-1, 3)
        summary, totals = NUMBERS_TOGETHER * -(-rows // ROWS_TOGETHER), 2 * len(table)
        ends = np.cumsum([rows, groups, checksums, checksums, rows * groups, summary, totals]).tolist()
        self.matrices = m = check_matrices(
            device,
            {
                "x": (1, problem.m),
                "weighted x": (1, problem.m),
                "weights of A": (1, problem.l),
                "weights of B": (1, problem.m),
                "weights of C": (1, problem.m),
                "B·x": (problem.l, padded(groups, 8)),  # rows of whole vectors, for vector copies to shared memory
                "squares of B": (problem.l, groups),
                "differences": (rows, groups),
                "squares of C": (rows, groups),
                "unused": (rows, 1),
                "numbers": (1, 5),
                "found": (rows, NUMBERS_A_ROW),
                "checksum table": table.shape,
                "sample": (1, 2),
                "to clear": (1, ends[-1]),
            },
        )
        m["B·x"] = m["B·x"][:, :groups]
        widths = [len(panel) for panel in layout.share.column_panels]
        x = random_x(np.random.default_rng(secrets.randbits(64)), widths, layout.group)[None, :]
        for key in ("x", "weighted x"):  # the latter is final if B has no rows
            device.write(m[key], x)
        of_operands, of_c = problem.operand_item_size, problem.item_size
        for name, columns, item in (("A", problem.l, of_operands), ("B", problem.m, of_operands), ("C", problem.m, of_c)):
            device.write(m[f"weights of {name}"], checksum_weights(columns, item)[None, :])
        device.write(m["numbers"], comparison_numbers(problem, layout.group)[None, :])
        device.write(m["checksum table"], table)
        parts = [m["to clear"][:, lo:hi] for lo, hi in zip([0, *ends], ends, strict=False)]
        self.row_squares, self.column_squares = parts[0].reshape(-1, 1), parts[1]
        # The largest magnitude and the checksum of each row of all pieces, in the layout's order.
        self.largest, self.of_rows = parts[2].reshape(-1, 1), parts[3].reshape(-1, 1).view("uint64")
        self.subtracted = parts[4].reshape(rows, groups)  # -A·(B·x)
        self.summary, self.totals = parts[5].reshape(-1, NUMBERS_TOGETHER), parts[6].reshape(-1, 2).view("uint64")
        self._sample = device.host_memory(m["sample"].shape, "uint64")
        self.upload_sample = device.uploading(m["sample"], self._sample)
        self.sample(ALL)
        results = m["to clear"][:, ends[4] :]
        on_host = device.host_memory(results.shape, "float64")
        self.download_results = device.downloading(results, on_host)
        self._host_summary = on_host[0, : self.summary.size].reshape(-1, NUMBERS_TOGETHER)
        of_pieces = on_host[0, self.summary.size :]
        self._host_checksums, self._host_largest = of_pieces[::2].view(np.uint64), of_pieces[1::2]  # of pieces

    def sample(self, sample: Sample) -> None:
        """From the next product on, checksum these lines of each piece."""
        self._sample[...] = sample.words

    def checksums_of_pieces(self) -> np.ndarray:
        """One checksum for each piece, as `mixed_total` makes it."""
        return np.array(self._host_checksums)

    def compared(self) -> tuple[Sums, tuple[Suspect, ...]]:
        """The result of comparing C·x with A·(B·x): a summary, and the sums that look wrong (the worst if they are in many
        rows). A sum looks wrong if it differs by more than THRESHOLD standard deviations, or at all if every sum is exact."""
        of_pieces, layout = self._host_largest.tolist(), self._layout
        largest = [max([of_pieces[number] for number in numbers], default=0.0) for numbers in self._of_operands]  # of A, B and C
        limit = 0.0 if is_exact(self._problem, layout.group, *largest[:2]) else THRESHOLD
        sums = Sums.of(self._host_summary, len(layout.share.rows), layout.groups, *largest)
        if sums.error <= limit:
            return sums, ()
        found = self._device.read(self.matrices["found"])
        errors, suspects = errors_of_rows(found), []
        above = np.flatnonzero(errors > limit)
        worst = above[np.argsort(-errors[above])][:MOST_SUSPECTS].tolist()
        for row in worst:
            error, groups = float(errors[row]), {int(found[row, 3]): float(errors[row])}
            if limit and len(worst) < MOST_SUSPECTS:
                sizes = self._device.read(self.matrices["differences"][row : row + 1])[0]
                with np.errstate(all="ignore"):
                    sizes = sizes * (error / sizes.max())
                groups |= {group: float(sizes[group]) for group in np.flatnonzero(sizes > limit).tolist()}
            suspects += [Suspect(layout.share.rows.lo + row, layout.columns_of(group), size) for group, size in groups.items()]
        return sums, tuple(suspects)


_ROWS_AT_ONCE = 4096  # of A·(B·x), to subtract by one launch: fewer do not fill a large GPU


@dataclass
class _Pending:
    """Rows of C whose sums C·x exist in some groups of columns, but A·(B·x) has not been subtracted from them."""

    buffer_rows: Span  # the same rows of A, in their buffer
    groups: list[Span] = field(default_factory=list)


_SizedCall = tuple[KernelCall, int]  # with the bytes that it reads


@dataclass
class _Operations:
    """The prepared operations on A, B and C in certain buffers."""

    # For each arrival, the operations on its own pieces, and on the pieces of each tile that it releases.
    by_arrival: list[tuple[list[_SizedCall], list[list[_SizedCall]]]]
    batches: Batches
    measured_late: Piece | None  # of A: its squares and magnitudes are found while it is multiplied by B·x
    # By rows of C, rows of the buffer of A, and groups.
    subtractions: dict[tuple[Span, Span, Span], KernelCall] = field(default_factory=dict)


class DeviceCheck:
    """The check of a rank's products. One object serves all products of a plan.

    Call `use` first, and again when the operands are in other memory. Then each product goes from `begin` to `finish`.
    """

    def __init__(self, device: Device, layout: CheckLayout, problem: Problem) -> None:
        self.layout, self._device, self._problem = layout, device, problem
        compile_check(device, problem.dtype, problem.operand_dtype, layout.group)
        self.sums = sums = DeviceSums(device, layout, problem)
        self._m = m = sums.matrices
        # A weak reference: the buffers may be arrays that their owner wants to free.
        self._buffers: Callable[[], Buffers | None] = lambda: None
        # By the matrices' places, and which are used in place: making views of device memory takes longer than launches.
        self._prepared: dict[tuple[tuple[Place, ...], frozenset[str]], _Operations] = {}
        self._operations = _Operations([], Batches(device, 0), None)
        self._clear = device.clearing(m["to clear"], 0)
        self._total = check_kernel(device, "column_totals", m["squares of B"], sums.column_squares)
        self._compare = check_kernel(
            device, "compare_sums", m["differences"], sums.subtracted, m["squares of C"], sums.row_squares, sums.column_squares,
            m["numbers"], m["found"], sums.summary,
        )  # fmt: skip
        self._total_pieces = check_kernel(device, "total_pieces", sums.of_rows, sums.largest, m["checksum table"], sums.totals)
        self._pending: dict[Span, _Pending] = {}
        order = layout.share.order
        self._last, self._last_of_b = len(order) - 1, max(number for number, each in enumerate(order) if each.operand == "B")
        self._unsubtracted: list[Arrival] = []  # rows from whose sums A·(B·x) has not been subtracted
        self._overlapping: list[Event] = []  # of subtractions on the queue "check beside"
        self._subtracted: list[tuple[Span, Event]] = []  # rows of A's buffer, in order, and the event after their last read

    def use(self, buffers: Buffers) -> None:
        """Set the buffers of A, B and C for the next products."""
        self._buffers = weakref.ref(buffers)
        key = buffers.places, buffers.in_place
        if key not in self._prepared:
            if len(self._prepared) >= MOST_PLACES:
                self._prepared.clear()
            batches = Batches(self._device, sum(map(self._bytes_of, self.layout.pieces)))
            # If A is one piece used in place, it needs no checksum: subtract_product measures it, which saves a read.
            of_a = [piece for piece in self.layout.pieces if piece.operand == "A"]
            late = of_a[0] if len(of_a) == 1 and "A" in buffers.in_place else None
            self._prepared[key] = _Operations(self._by_arrival(buffers, late), batches, late)
        self._operations = self._prepared[key]

    def _by_arrival(self, buffers: Buffers, late: Piece | None) -> list[tuple[list[_SizedCall], list[list[_SizedCall]]]]:
        weighed: set[Span] = set()
        by_arrival = []
        for arrival, (own, tiles) in zip(self.layout.share.order, self.layout.by_arrival, strict=True):
            on_own: list[_SizedCall] = []
            for piece in own:
                if piece is not late:
                    # 0 in place, not to flush a batch: A·(B·x) follows at once and joins it.
                    size = 0 if piece.operand in buffers.in_place else self._bytes_of(piece)
                    on_own += [(operation, size) for operation in self._of_operand(buffers, arrival, piece, weighed)]
            on_tiles = [
                [(self._of_c(buffers, tile, piece), self._bytes_of(piece)) for piece in of_tile]
                for tile, of_tile in zip(arrival.releases, tiles, strict=True)
            ]
            by_arrival.append((on_own, on_tiles))
        return by_arrival

    def begin(self) -> None:
        self._pending.clear()
        self._subtracted.clear()
        self._unsubtracted.clear()
        self._overlapping.clear()
        self._operations.batches.begin()
        self._enqueue(self._clear)
        self._enqueue(self.sums.upload_sample)

    def before_overwriting(self, arrival: Arrival) -> list[Event]:
        """Subtract A·(B·x) for all rows of A that this arrival overwrites. Returns the events that must be complete before."""
        if arrival.operand == "B":
            return []
        self._subtract([rows for rows, pending in self._pending.items() if pending.buffer_rows.meets(arrival.buffer_span)])
        # The last read of these rows may be an earlier subtraction, together with rows of other panels.
        return [event for rows, event in self._subtracted if rows.meets(arrival.buffer_span)][-1:]

    def arrived(self, number: int, after: Sequence[Event]) -> list[Event]:
        """Sum arrival `number` of the rank's order, which is on the device after these events. Returns the events that must be
        complete before it is overwritten."""
        events = [event for each in self._operations.by_arrival[number][0] for event in self._enqueue(*each, after)]
        if self.layout.share.holds_all:
            if number == self._last_of_b:
                self._enqueue(self._total)
            self._subtract_early(number)
        return events[-1:]

    def _subtract_early(self, number: int) -> None:
        """If no buffer is overwritten: subtract A·(B·x) as soon as all of B and enough rows of A have arrived."""
        arrival = self.layout.share.order[number]
        if arrival.operand == "A":
            self._unsubtracted.append(arrival)
        if number >= self._last_of_b and (
            sum(len(each.span) for each in self._unsubtracted) >= _ROWS_AT_ONCE or number == self._last
        ):
            for each in self._unsubtracted:
                self._pending[each.span] = _Pending(each.buffer_span, [Span(0, self.layout.groups)])
            self._operations.batches.flush()
            self._subtract(list(self._pending))
            self._overlapping += self._operations.batches.flush_beside()  # limited by compute, and the sums by memory
            self._unsubtracted.clear()

    def computed(self, number: int, index: int, tile: Tile, after: Sequence[Event]) -> list[Event]:
        """Sum the tile `index` of those that arrival `number` releases, which is complete after these events. Returns the events
        that must be complete before it is overwritten."""
        events = [event for each in self._operations.by_arrival[number][1][index] for event in self._enqueue(*each, after)]
        if self.layout.share.holds_all:
            return []
        pending = self._pending.setdefault(tile.rows, _Pending(tile.buffer_rows))
        pending.groups += [piece.groups for piece in self.layout.by_arrival[number][1][index]]
        whole = [rows for rows, each in self._pending.items() if sum(map(len, each.groups)) == self.layout.groups]
        if sum(map(len, whole)) >= _ROWS_AT_ONCE:
            events += self._subtract(whole)
        return events[-1:]

    def finish(self) -> None:
        """Compare the sums, after `arrived` and `computed` were called for all arrivals and tiles."""
        self._subtract(list(self._pending))
        if not self.layout.share.holds_all:
            self._enqueue(self._total)
        self._operations.batches.flush()
        self._enqueue(self._compare, after=self._overlapping)
        self._enqueue(self._total_pieces)
        self._enqueue(self.sums.download_results)
        self._operations.batches.flush()

    def _enqueue(self, operation: KernelCall, size: int = 0, after: Sequence[Event] = ()) -> list[Event]:
        """Enqueue an operation that reads `size` bytes. Returns the events that must be complete before they are overwritten:
        none if no buffer is ever overwritten, when operations are batched."""
        if not self.layout.share.holds_all:
            return [self._device.launch([operation], [*after], "check")]
        self._operations.batches.add(operation, after, size)
        return []

    def _subtract(self, rows_of_c: Sequence[Span]) -> list[Event]:
        """Subtract A·(B·x) from the sums of these rows of C, by one launch for neighbouring rows and groups. Returns the last
        event."""
        blocks: list[tuple[Span, Span, list[Span]]] = []
        for rows in sorted(rows_of_c):
            pending = self._pending.pop(rows)
            groups = merged(pending.groups)
            if blocks and blocks[-1][2] == groups and blocks[-1][0].hi == rows.lo and blocks[-1][1].hi == pending.buffer_rows.lo:
                above, in_buffer, _ = blocks.pop()
                blocks.append((Span(above.lo, rows.hi), Span(in_buffer.lo, pending.buffer_rows.hi), groups))
            else:
                blocks.append((rows, pending.buffer_rows, groups))
        keys = [(rows, buffer_rows, of_group) for rows, buffer_rows, groups in blocks for of_group in groups]
        self._subtracted += [(key[1], event) for key in keys for event in self._enqueue(self._subtraction(*key))]
        return [event for _, event in self._subtracted[-1:]]

    def _subtraction(self, rows: Span, buffer_rows: Span, groups: Span) -> KernelCall:
        key = (rows, buffer_rows, groups)
        prepared, buffers = self._operations.subtractions, self._buffers()
        if key not in prepared:
            assert buffers is not None, "their product is under way"
            sums, late = self.sums, self._operations.measured_late
            products, into = self._m["B·x"][:, groups.slice], sums.subtracted[rows.slice, groups.slice]
            measured = slice(0) if late is None else slice(late.offset, late.offset + len(late.rows))
            squares = sums.row_squares[slice(0) if late is None else rows.slice]
            a = buffers.rows_of_a(buffer_rows)
            prepared[key] = check_kernel(self._device, "subtract_product", a, products, into, squares, sums.largest[measured])
        return prepared[key]

    def _bytes_of(self, piece: Piece) -> int:
        item = self._problem.item_size if piece.operand == "C" else self._problem.operand_item_size
        return len(piece.rows) * len(piece.columns) * item

    def _of_operand(self, buffers: Buffers, arrival: Arrival, piece: Piece, weighed: set[Span]) -> list[KernelCall]:
        """The operations on a piece of A or B. A few rows of the first piece of some columns of B give their weights in x."""
        matrix, m, rows = buffers.destination(arrival), self._m, piece.rows.slice
        if piece.operand == "A":
            # Rows that arrive again are added to the squares again: as all arrive equally often, that only widens the tolerance.
            return [self._row_sums(piece, matrix, "weights of A", 0, m["unused"][rows], self.sums.row_squares[rows])]
        part = matrix[rows, piece.columns.within(arrival.span).slice]
        columns, groups = piece.columns.slice, piece.groups.slice
        sums = self._row_sums(
            piece, part, "weights of B", self.layout.group, m["B·x"][rows, groups], m["squares of B"][rows, groups]
        )
        if piece.columns in weighed:
            return [sums]
        weighed.add(piece.columns)
        into = m["x"][:, columns], m["numbers"], m["weighted x"][:, columns]
        return [check_kernel(self._device, "weigh_columns", part[:SAMPLE], *into, group=self.layout.group), sums]

    def _of_c(self, buffers: Buffers, tile: Tile, piece: Piece) -> KernelCall:
        rows, groups, m = piece.rows.slice, piece.groups.slice, self._m
        part = buffers.operands(tile)[2][:, piece.columns.within(tile.columns).slice]
        sums, squares = m["differences"][rows, groups], m["squares of C"][rows, groups]
        return self._row_sums(piece, part, "weights of C", self.layout.group, sums, squares)

    def _row_sums(self, piece: Piece, matrix: Any, weights: str, group: int, sums: Any, squares: Any) -> KernelCall:
        m, columns, rows = self._m, piece.columns.slice, slice(piece.offset, piece.offset + len(piece.rows))
        x = m["weighted x"][:, columns] if group else m["x"]
        into = sums, squares, self.sums.largest[rows], self.sums.of_rows[rows], m["sample"]
        return check_kernel(self._device, "row_sums", matrix, x, m[weights][:, columns], *into, group=group)


def judge(problem: Problem, group: int, findings: Sequence[Findings], pieces: PiecesOfRanks, root: int) -> Check:
    """The result of a product's check, from all ranks' findings. `group`: columns in a sum."""
    copies = wrong_copies(findings, pieces, root)
    faults = [*copies]
    of_ranks = [(rank, found, found.sums) for rank, found in enumerate(findings) if found.sums is not None]
    largest_a = max((sums.largest_a for *_, sums in of_ranks), default=0.0)
    largest_b = max((sums.largest_b for *_, sums in of_ranks), default=0.0)
    exact = is_exact(problem, group, largest_a, largest_b)
    for rank, found, sums in of_ranks:
        if sums.count if exact else sums.error > THRESHOLD:
            where = "; ".join(f"row {suspect.row}, columns {suspect.columns}" for suspect in found.suspects[:MOST_NAMED])
            faults.append(Fault(f"{found.where} multiplied wrong: {where}", rank=rank))
    if exact:
        error, tolerance = float(sum(sums.count for *_, sums in of_ranks)), 0.0
    else:
        error, tolerance = max((sums.error for *_, sums in of_ranks), default=0.0), THRESHOLD
    only_sums = bool(faults) and not exact and not copies
    # The host decides if sums were not judged, if an exact C holds fractions, which sums do not show, and for a product of larger
    # integers that is exact while the device's sums are not: the host checks that modulo 2^64.
    left_to_host = any(sums.not_judged or (exact and sums.largest_c >= NOT_INTEGRAL) for *_, sums in of_ranks) or (
        not exact and is_exact_product(problem.dtype, problem.l, largest_a, largest_b)
    )
    undecided = only_sums or (not faults and left_to_host)
    return Check("exact" if exact else "freivalds", error, tolerance, not faults, tuple(faults), undecided=undecided)
