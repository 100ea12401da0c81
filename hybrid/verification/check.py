# SPDX-License-Identifier: MIT
"""The result of a check, and how the root of the check derives it from all ranks' findings: sums that their devices compared,
and checksums of the pieces that were copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.errors import CheckFailed
from hybrid.verification.copied import PiecesOfRanks, Place, named
from hybrid.verification.rounding import THRESHOLD, Sums, is_exact, is_exact_product

MOST_NAMED = 3  # wrong rows of one product, or of one rank, in a message
MOST_SUSPECTS = 16  # rows: in fewer, all sums that look wrong become suspects; else one in each of so many rows


@record
class Fault:
    """Something that is wrong with a product. As text it is its words.

    `code`: of `hybrid.errors.CODES`. `rank`: whose device was wrong, and `row` of C; None where that is not known.
    """

    text: str
    code: str = CheckFailed.code
    rank: int | None = None
    row: int | None = None

    def of(self, what: str, first: int = 0) -> Fault:
        """The same fault, with `what` it is about before its words. `first`: the row of the whole C from which its row counts."""
        return replace(self, text=f"{what}: {self.text}", row=None if self.row is None else first + self.row)

    def __str__(self) -> str:
        return self.text


@record
class Check:
    """The result of checking one product.

    `error` and `tolerance` are in standard deviations of this product's rounding errors; in an exact check `error` is the number
    of sums that differ, and `tolerance` is 0.
    """

    kind: str  # "exact", "freivalds", or "none" where NaN, infinity or overflow leaves nothing to compare
    error: float
    tolerance: float
    ok: bool
    faults: tuple[Fault, ...] = ()
    note: str = ""  # what a right product has that is unusual
    # The host has to check as well, because the device left sums unjudged (for NaN, infinity or overflow, or because the sums are
    # rounded though the product is exact), or found differences that only a look at the elements can tell from rounding errors.
    undecided: bool = False
    repaired: tuple[str, ...] = ()  # what was wrong, where, and how it was computed again; all other fields: after the repair

    @property
    def code(self) -> str:
        """What is wrong, as one of `hybrid.errors.CODES`."""
        return self.faults[0].code if self.faults else CheckFailed.code

    def refusal(self) -> str:
        """What is wrong, in one line."""
        if not self.faults:
            return f"the product is wrong: error {self.error:.2e}, tolerance {self.tolerance:.2e}"
        more = f" (and {len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
        return f"the product is wrong: {self.faults[0]}{more}"

    def of(self, what: str, first: int = 0) -> Check:
        """The same check, with `what` it is about ("product 2", say) before each of its lines. `first`: as in `Fault.of`."""
        repaired = tuple(f"{what}: {line}" for line in self.repaired)
        return replace(self, faults=tuple(fault.of(what, first) for fault in self.faults), repaired=repaired)

    def settled(self, by_host: Check) -> Check:
        """The result of both checks, where this one, a device's, is undecided: the host's. If the host found a fault, the faults
        that the devices named come first."""
        if not by_host.ok:
            return replace(by_host, faults=self.faults + by_host.faults)
        unusual = f"differences of {self.error:.1f} standard deviations are rounding errors: the host found no fault"
        return replace(by_host, note=by_host.note or ("" if self.ok else unusual))


def settled(by_devices: Check | None, by_host: Check | None) -> Check:
    """The result of one or both checks, of which one at least was made: the devices', unless there is none or it is undecided."""
    if by_devices is None or by_host is None:
        found = by_devices or by_host
        assert found is not None
        return found
    return by_devices.settled(by_host) if by_devices.undecided else by_devices


def worse_of(before: Check | None, check: Check) -> Check:
    """The worse of two checks, with what was repaired by either."""
    if before is None:
        return check
    worse = min(before, check, key=lambda each: (each.ok, each.kind == "exact", -each.error))
    return replace(worse, repaired=before.repaired + check.repaired)


@record
class Suspect:
    """A sum of C·x that differs by more than the usual rounding errors. Only its elements tell whether it is wrong."""

    row: int  # of C
    columns: Span  # of the group that was summed
    size: float  # of the difference, in units of those to be expected


# By rank: the numbers of that rank's pieces that were summed in host memory, and an array of checksums for all of its pieces, in
# which the others' are 0.
InMemory = Mapping[int, tuple[list[int], np.ndarray]]


@record
class Findings:
    """What one rank found in the check of one product."""

    where: str  # rank, host and GPU, for messages
    sums: Sums | None  # None: it multiplied nothing
    on_device: np.ndarray  # the checksums of its pieces, as they were on its device
    in_memory: InMemory
    suspects: tuple[Suspect, ...] = ()
    wrong: tuple[np.ndarray, ...] | None = None  # all parts of C with such sums, for `WrongParts.merge`
    all_told: bool = False  # no other sum of a product that is not exact looks wrong


@dataclass
class _Seen:
    """The checksums of a place that ranks made in host memory."""

    owner: int  # the rank whose device copies it
    checksums: dict[int, int] = field(default_factory=dict)  # by the rank that made it

    def source(self, operand: str, root: int) -> int:
        """The rank from which the others have it: of C the one that multiplied, of an operand the root."""
        first = self.owner if operand == "C" else root
        return first if first in self.checksums else next(iter(self.checksums))


@record
class WrongCopy:
    """A piece that was not the same everywhere."""

    text: str  # what is wrong, for messages
    place: Place
    rank: int | None = None  # whose device it reached or left; None where it differs between nodes
    number: int | None = None  # of the piece, among that rank's; None where it was copied several times

    @property
    def fault(self) -> Fault:
        return Fault(self.text, "check-exchange" if self.rank is None else "check-copy", self.rank)


def all_were_copied_right(findings: Sequence[Findings], pieces: PiecesOfRanks) -> bool:
    """Whether `wrong_copies` finds none. This takes less time, and most products have none."""
    if not any(found.in_memory or len(found.on_device) for found in findings):
        return True  # nothing was copied
    known, seen = np.zeros(pieces.how_many, np.uint64), np.zeros(pieces.how_many, bool)
    for found in findings:
        for rank, (summed, checksums) in found.in_memory.items():
            places, of_places = pieces.numbers[rank][summed], checksums[summed]
            if (seen[places] & (known[places] != of_places)).any():
                return False
            known[places], seen[places] = of_places, True
    return all(
        seen[places].all() and bool((known[places] == found.on_device).all())
        for found, places in zip(findings, pieces.numbers, strict=True)
        if len(found.on_device)
    )


def wrong_copies(findings: Sequence[Findings], pieces: PiecesOfRanks, root: int) -> list[WrongCopy]:
    """The pieces that were not the same everywhere, each once."""
    if all_were_copied_right(findings, pieces):
        return []
    seen: dict[Place, _Seen] = {}
    for finder, found in enumerate(findings):
        for rank, (summed, checksums) in found.in_memory.items():
            for number in summed:
                seen.setdefault(pieces[rank].places[number], _Seen(rank)).checksums[finder] = int(checksums[number])
    wrong: dict[str, WrongCopy] = {}
    for place, each in seen.items():
        source = each.source(place[0], root)
        of_source = f"as they are on {findings[source].where}"
        for finder in (finder for finder, checksum in each.checksums.items() if checksum != each.checksums[source]):
            text = f"{named(place)} did not reach {findings[finder].where} {of_source}"
            wrong.setdefault(text, WrongCopy(text, place))
    for rank, (found, of_rank) in enumerate(zip(findings, pieces, strict=True)):
        on_device = found.on_device.tolist()
        for number, (place, checksum) in enumerate(zip(of_rank.places, on_device, strict=bool(on_device))):
            way = "left" if place[0] == "C" else "reached"
            if place not in seen:
                text = f"{named(place)} never {way} the device of {found.where}"
            elif checksum not in seen[place].checksums.values():
                text = f"{named(place)} {way} the device of {found.where} with other values than they have in memory"
            else:
                continue
            wrong[text] = WrongCopy(text, place, rank, None if text in wrong else number)
    return list(wrong.values())


def judge(problem: Problem, group: int, findings: Sequence[Findings], pieces: PiecesOfRanks, root: int) -> Check:
    """The result of one product's check, from all ranks' findings. `group`: columns in a sum."""
    copies = wrong_copies(findings, pieces, root)
    faults = [copy.fault for copy in copies]
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
    # With larger integers the product can still be exact while the device's sums are not: the host checks it modulo a prime.
    left_to_host = any(sums.not_judged for *_, sums in of_ranks) or (
        not exact and is_exact_product(problem.dtype, problem.l, largest_a, largest_b)
    )
    undecided = only_sums or (not faults and left_to_host)
    return Check("exact" if exact else "freivalds", error, tolerance, not faults, tuple(faults), undecided=undecided)
