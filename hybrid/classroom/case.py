# SPDX-License-Identifier: MIT
"""A student's kernel on one shape, and on all that it was tried on: what was found."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.classroom.launch import Extents, Launch
from hybrid.classroom.meaning import Meaning
from hybrid.classroom.student_kernel import StudentKernel
from hybrid.classroom.trial import Outcome
from hybrid.emulation.branches import Branch
from hybrid.emulation.requests import Site

Sizes = tuple[int, int, int]  # n, l, m


@dataclass(frozen=True)
class Case:
    """The kernel on one shape."""

    sizes: Sizes
    grid: Extents
    block: Extents
    outcomes: dict[str, Outcome]  # by order; fewer after one that was stopped
    sites: tuple[Site, ...] = ()  # how its lines use memory, of a right one
    branches: tuple[Branch, ...] = ()  # and where lanes of its warps part
    shared: int = 0  # bytes of dynamic shared memory
    faults: tuple[str, ...] = ()  # that have nothing to do with values: races, stray accesses, a barrier, an endless loop
    notes: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()  # lines, in one order of the threads

    @property
    def wrong(self) -> set[int]:
        return {each for outcome in self.outcomes.values() for each in outcome.wrong}

    @property
    def never(self) -> set[int]:
        return {each for outcome in self.outcomes.values() for each in outcome.never}

    @property
    def uncertain(self) -> set[int]:
        """Elements that several threads write."""
        return {each for outcome in self.outcomes.values() for each in outcome.several}

    @property
    def depends_on_order(self) -> bool:
        return len({outcome.digest for outcome in self.outcomes.values()}) > 1

    @property
    def outside(self) -> tuple[tuple[str, int], ...]:
        return next((outcome.outside for outcome in self.outcomes.values() if outcome.outside), ())

    @property
    def is_right(self) -> bool:
        return not (self.wrong or self.faults or self.outside or self.uncertain)


@dataclass(frozen=True)
class Examination:
    kernel: StudentKernel
    meaning: Meaning
    launch: Launch
    cases: tuple[Case, ...]
    static_shared: int | None  # bytes of a block's __shared__ variables

    @property
    def is_right(self) -> bool:
        return all(case.is_right for case in self.cases)
