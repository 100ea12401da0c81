# SPDX-License-Identifier: MIT
"""What was found of a student's kernel, on one shape and on all."""

from __future__ import annotations

from hybrid.classroom.finding import Finding
from hybrid.classroom.launch import Extents, Launch
from hybrid.classroom.meaning import Meaning
from hybrid.classroom.student_kernel import StudentKernel
from hybrid.classroom.trial import Outcome
from hybrid.core.problem import record
from hybrid.emulation.branches import Branch
from hybrid.emulation.requests import Site

Sizes = tuple[int, int, int]  # n, l, m


@record
class Case:
    """The kernel on one shape."""

    sizes: Sizes
    grid: Extents
    block: Extents
    outcomes: dict[str, Outcome]  # by the order of the threads; after one that was stopped there are no more
    sites: tuple[Site, ...] = ()  # where no fault is found, how its lines use memory
    branches: tuple[Branch, ...] = ()  # where no fault is found, where the lanes of warps diverge
    shared: int = 0  # bytes of dynamic shared memory
    faults: tuple[Finding, ...] = ()  # other than wrong elements: races, stray accesses, a divergent barrier, an endless loop
    hints: tuple[Finding, ...] = ()  # what may be why C is wrong, and is no fault where it is right
    notes: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()  # lines that the kernel printed, in one order of the threads

    @property
    def wrong(self) -> set[int]:
        """The wrong elements of C, numbered row by row."""
        return {each for outcome in self.outcomes.values() for each in outcome.wrong}

    @property
    def never(self) -> set[int]:
        """Elements that no thread writes."""
        return {each for outcome in self.outcomes.values() for each in outcome.never}

    @property
    def uncertain(self) -> set[int]:
        """Elements that several threads write."""
        return {each for outcome in self.outcomes.values() for each in outcome.several}

    @property
    def depends_on_order(self) -> bool:
        """Whether C is not the same in every order of the threads."""
        return len({outcome.digest for outcome in self.outcomes.values()}) > 1

    @property
    def outside(self) -> tuple[tuple[str, int], ...]:
        """Elements that were written where nothing may be: the matrix, and the number counted from its first element."""
        return next((outcome.outside for outcome in self.outcomes.values() if outcome.outside), ())

    @property
    def is_right(self) -> bool:
        return not (self.wrong or self.faults or self.outside or self.uncertain)


@record
class Examination:
    """The kernel on all shapes."""

    kernel: StudentKernel
    meaning: Meaning
    launch: Launch
    cases: tuple[Case, ...]
    static_shared: int | None  # bytes of a block's __shared__ variables; None where they are not known

    @property
    def is_right(self) -> bool:
        return all(case.is_right for case in self.cases)
