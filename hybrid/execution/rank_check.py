# SPDX-License-Identifier: MIT
"""One rank's part of the check of a product that its device multiplies: sums on the device, and checksums of all that is
copied."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid.devices.buffers import Buffers
from hybrid.plan.check_layout import Piece, check_layout, group_columns
from hybrid.plan.plan import Plan
from hybrid.ranks.team import Team
from hybrid.selection.placement import RankPlacement
from hybrid.transport.base import RankMatrices
from hybrid.transport.rank_device import RankDevice
from hybrid.verification.check import MOST_SUSPECTS, Check, Findings, InMemory, Suspect, WrongCopy, judge, wrong_copies
from hybrid.verification.copied import CopiedPieces, PiecesOfRanks
from hybrid.verification.copy_checksums import CopyChecksums
from hybrid.verification.device_check import DeviceCheck
from hybrid.verification.rounding import THRESHOLD

if TYPE_CHECKING:
    from hybrid.verification.expected_sums import ExpectedSums
    from hybrid.verification.wrong_parts import WrongParts

SumElsewhere = Callable[[Sequence[CopiedPieces]], InMemory]


class RankCheck:
    """It is made for a call, and used for each of its products. `matrices`, `in_place`: as for `make_transport`."""

    def __init__(
        self,
        team: Team,
        plan: Plan,
        rank_device: RankDevice,
        matrices: RankMatrices | None,
        placements: Sequence[RankPlacement],
        in_place: Container[str] = (),
    ) -> None:
        self._team, self._plan, self._rank_device, self._in_place = team, plan, rank_device, in_place
        self._where = placements[team.rank].name
        self.device: DeviceCheck | None = None
        self.copies: CopyChecksums | None = None
        self._all_in_place = all(operand in in_place for operand in "ABC")
        if matrices is not None and not self._all_in_place:
            device, problem = rank_device.device, plan.problem
            origin = 0 if plan.at_root else plan.shares[team.rank].rows.lo
            operands = matrices.a, matrices.b, matrices.c
            # The cores of ranks whose matrices the root copies are free.
            users = placements if plan.at_root else [placements[team.rank]]
            threads = sum(placement.threads.count for placement in users)
            pieces = self._pieces()
            # The root's arrays and shared matrices have the same panels, but not the same ranks copy them.
            copied_for = f"own pieces of ranks {[*pieces]}"
            own = self._once(copied_for, lambda: {rank: own_pieces(plan, self._all_pieces, rank) for rank in pieces})
            self.copies = CopyChecksums(problem, pieces, device, own, operands, origin, threads)

    def check_in(self, buffers: Buffers) -> None:
        """Have sums computed of what is in this rank's buffers."""
        if self._plan.shares[self._team.rank].order:
            operations, problem = self._rank_device.device.check_operations(), self._plan.problem
            layout = self._all_pieces[self._team.rank].layout
            size = self._plan.bytes_of_device_check(self._team.rank)
            self.device = self._once("sums", lambda: DeviceCheck(operations, layout, problem), size)
            self.device.use(buffers)

    def begin(self) -> None:
        """Begin a product."""
        if self.copies is not None:
            self.copies.begin()

    def abandon(self) -> None:
        """Give up the product, which has failed. When this returns, no matrix is read any more."""
        if self.copies is not None:
            self.copies.abandon()

    def findings(self, elsewhere: SumElsewhere | None = None) -> Findings:
        """What this rank has found, when the product is complete.

        `elsewhere(pieces)`: sums those pieces in this node's memory that ranks of other nodes copy.
        """
        suspects: tuple[Suspect, ...] = ()
        sums, wrong, on_device = None, None, np.empty(0, np.uint64)
        if self.copies is not None:
            self.copies.complete()
        if self.device is not None:
            sums, suspects, wrong = self.device.sums.compared(THRESHOLD)
            if not self._all_in_place:  # else nothing was copied
                on_device = self.device.sums.checksums_of_pieces()
        in_memory: dict[int, tuple[list[int], np.ndarray]] = self.copies.results() if self.copies is not None else {}
        if len(on_device):
            self._add_in_place(in_memory, on_device)
        if elsewhere is not None:
            in_memory |= elsewhere(self._all_pieces)
        all_told = len({suspect.row for suspect in suspects}) < MOST_SUSPECTS
        return Findings(self._where, sums, on_device, in_memory, suspects, wrong, all_told)

    def _add_in_place(self, in_memory: dict[int, tuple[list[int], np.ndarray]], on_device: np.ndarray) -> None:
        """Take the checksums of what was not copied from the device, for those in memory: it is the same memory."""
        own = self._team.rank
        numbers = [piece.number for piece in self._all_pieces[own].layout.pieces if piece.operand in self._in_place]
        if numbers:
            summed, checksums = in_memory.get(own, ([], np.zeros(len(on_device), np.uint64)))
            checksums[numbers] = on_device[numbers]
            in_memory[own] = summed + numbers, checksums

    def judge(self, findings: Sequence[Findings]) -> Check:
        """The check, from all ranks' findings."""
        plan = self._plan
        return judge(plan.problem, group_columns(plan.device_memory), findings, self._all_pieces, plan.root)

    def wrong_copies(self, findings: Sequence[Findings]) -> list[tuple[WrongCopy, np.ndarray]]:
        """The pieces that were copied wrong, by all ranks' findings, each with those of its rows that are wrong. Every rank
        calls it.

        Where an operand was written since it was summed, nobody's device is told to be wrong.
        """
        pieces = self._all_pieces
        copies = wrong_copies(findings, pieces, self._plan.root)
        with self._team.phase("repair") as telling:
            telling.mine = [self._checksums_of(copy) for copy in copies]
        found = []
        for number, copy in enumerate(copies):
            rows = np.arange(copy.place[1].lo, copy.place[1].hi)
            on_device, in_memory, written = zip(*(of_rank[number] for of_rank in telling.all), strict=True)
            if any(written):
                copy = replace(copy, rank=None)
            sums = [next((each for each in some if each is not None), None) for some in (on_device, in_memory)]
            if sums[0] is not None and sums[1] is not None and (sums[0] != sums[1]).any():
                rows = rows[sums[0] != sums[1]]
            found.append((copy, rows))
        return found

    def expected_sums(self, wrong: WrongParts) -> list[ExpectedSums]:
        """The sums that this rank's device expects of the parts that are to be computed again."""
        if self.device is None:
            return []
        parts = wrong.blocks(self._plan.shares[self._team.rank].rows)
        found = (self.device.sums.expected(rows, columns) for rows, columns in parts)
        return [expected for expected in found if expected is not None]

    def _checksums_of(self, copy: WrongCopy) -> tuple[np.ndarray | None, np.ndarray | None, bool]:
        """The checksums of a piece's rows on this rank's device, and in memory; each None where they are not summed here. And
        whether the piece is of an operand that has been written since."""
        on_device = None
        if copy.rank is None or copy.number is None:
            return None, None, False
        if copy.rank == self._team.rank and self.device is not None:
            piece = self._all_pieces[copy.rank].layout.pieces[copy.number]
            on_device = self.device.sums.checksums()[piece.offset : piece.offset + len(piece.rows)]
        if self.copies is None:
            return on_device, None, False
        return on_device, self.copies.rows_of(copy.place), copy.place[0] != "C" and self.copies.was_written(copy.place)

    @cached_property
    def _all_pieces(self) -> PiecesOfRanks:
        """The pieces that the ranks copy, for each rank."""
        plan = self._plan
        return self._once(
            "pieces", lambda: PiecesOfRanks(CopiedPieces(check_layout(plan, each)) for each in range(self._team.size))
        )

    def _pieces(self) -> dict[int, CopiedPieces]:
        """The pieces of the ranks whose copies this rank sums: its own, or at a root that copies its own arrays those of all
        ranks."""
        plan, own, pieces = self._plan, self._team.rank, self._all_pieces
        return dict(enumerate(pieces)) if plan.at_root and own == plan.root else {own: pieces[own]}

    def _once(self, what: str, make: Callable[[], Any], device_bytes: int = 0) -> Any:
        """What `make` gave before for a plan with the same panels, or now gives."""
        of_check = f"{what} of the check, {self._plan.transport}, {group_columns(self._plan.device_memory)} columns in a group"
        return self._rank_device.once_for_plan(of_check, self._plan, make, device_bytes)


def own_pieces(plan: Plan, pieces: Sequence[CopiedPieces], rank: int) -> frozenset[int]:
    """The numbers of those of a rank's pieces of A and B that count as summed by itself.

    Every rank of a node gets a copy of a piece of B, which only one of them has to sum. `pieces`: of all ranks.
    """
    layout = pieces[rank].layout
    multiplying = [each for each in plan.topology.nodes[plan.topology.node_of(rank)] if plan.shares[each].order]

    def sums(piece: Piece) -> bool:
        if piece.operand == "A" or plan.transport in ("peers", "nccl"):
            return piece.operand == "A" or piece.rows.lies_in(plan.b_rows_over_link(rank))
        return multiplying[layout.numbers_of_b[piece.rows, piece.columns] % len(multiplying)] == rank

    return frozenset(piece.number for piece in layout.pieces if piece.operand != "C" and sums(piece))
