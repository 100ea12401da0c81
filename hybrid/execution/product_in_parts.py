# SPDX-License-Identifier: MIT
"""A product part by part: some rows of A and C at a time, which are checked and on the disk before the next, so that a later job
can go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

from hybrid.arrays.part_of_rows import PartOfRows
from hybrid.arrays.sources import MatrixSource
from hybrid.core.problem import Problem
from hybrid.core.record import record
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.core.wall import wall
from hybrid.errors import DoesNotFit, HybridError
from hybrid.execution.outcome import Outcome, RunOptions
from hybrid.execution.part_request import ROWS_OF_A_PART, Facts, arithmetic, parts_of, problem_of, rows_of_a_part, sample_of
from hybrid.execution.parts_on_disk import PartsOnDisk
from hybrid.execution.product import run_product
from hybrid.execution.progress import Progress
from hybrid.execution.sum_of_parts import SumOfParts
from hybrid.host.matrix_output import MatrixOutput
from hybrid.host.processor import processor
from hybrid.selection.agreement import agree
from hybrid.selection.decision import Decision, ProductRequest
from hybrid.selection.machine import Inventory
from hybrid.selection.session import Session

_STEPS = 10**6  # the whole work, where progress is told


@record
class PartsRequest:
    """What is to be computed.

    `asked`: tells this product from any other, in words; it is called again to see whether the files of the operands are still
    what they were. `version`: of this program. `inventories`: of all ranks.
    """

    problem: Problem
    a: MatrixSource
    b: MatrixSource
    output: MatrixOutput
    asked: Callable[[], dict[str, str]]
    version: str
    inventories: Sequence[Inventory]


class ProductInParts:
    """A product that this job begins, or goes on with. Every rank makes one, and calls its methods in their order."""

    def __init__(self, session: Session, request: PartsRequest, settings: Settings) -> None:
        """UsageError where the file cannot be written in parts."""
        self._session, self._team = session, session.team
        self._request, self._settings, self._problem = request, settings, request.problem
        self._disk = PartsOnDisk(self._team, request.output, request.problem)
        self._asked: Facts = {}
        self._arithmetic: Facts = {}
        self._decisions: dict[int, Decision] = {}  # by the rows of a part
        self.rows = 0
        self._parts: list[Span] = []

    def prepare(self) -> None:
        """Find out which parts are there. Raises on all ranks alike where this job cannot go on with these, or does not fit."""
        self._disk.open()
        self._decide()
        with self._team.phase("agree", timed=False) as asking:
            asking.mine = self._request.asked(), processor()
        asked, processors = asking.all[0][0], [name for _, name in asking.all]
        self._asked = {**asked, ROWS_OF_A_PART: str(self.rows)}
        self._arithmetic = arithmetic(self._decision_of_largest, self._request.version, processors)
        self._disk.refuse_other(self._asked, self._arithmetic)
        wall.enter("resume")
        self._disk.look(self._parts)

    def run(
        self,
        progress: Progress,
        told: Callable[[], None],
        measuring: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Outcome:
        """Compute, check and write the parts that are missing, and give the file its name. A part that fails its check ends it.

        `told`: called whenever more rows are there. `measuring`: a context around each part's product and its check.
        """
        made, before = SumOfParts(), self.rows_there
        wall.enter("write")
        self._disk.begin(self._asked, self.rows, self._arithmetic)
        told()
        for part in [part for part in self._parts if part not in self._disk.there]:
            done = self.rows_there - before
            telling = partial(_tell, progress, done, len(part), self._problem.n - before)
            self._compute(part, made, RunOptions(progress=telling, after=made.last, measuring=measuring))
            if made.failed:
                break
            told()
        if not made.failed:
            wall.enter("write")
            self._disk.finish()
        return made.outcome(self.decision, self.rows, before)

    def close(self) -> None:
        """Let other jobs write the file."""
        self._disk.close()

    @property
    def rows_there(self) -> int:
        return self._disk.rows_there

    @property
    def name(self) -> str:
        """The name of the file that has these rows."""
        return self._disk.name

    @property
    def decision(self) -> Decision:
        """The decision for a part, but with the whole problem."""
        decision = self._decision_of_largest
        return replace(decision, plan=replace(decision.plan, problem=self._problem))

    @property
    def _decision_of_largest(self) -> Decision:
        return self._decisions[min(self.rows, self._problem.n)]

    def _decide(self) -> None:
        """Decide how many rows a part has, and how parts are computed: as the journal says, or in parts that fit."""
        wanted = self._settings.resume_rows or self._disk.state.rows
        sample = sample_of(self._problem, self._team.size)
        self.rows = wanted or rows_of_a_part(self._problem, self._agreed(sample))
        while True:
            self._parts = parts_of(self._problem, self.rows)
            problems = {len(part): problem_of(self._problem, part) for part in self._parts} or {0: self._problem}
            try:
                self._decisions = {rows: self._agreed(of_part) for rows, of_part in problems.items()}
                return
            except DoesNotFit:
                if wanted or self.rows <= sample.n:
                    raise
                self.rows = max(sample.n, -(-self.rows // 2))

    def _agreed(self, problem: Problem) -> Decision:
        return agree(self._session, ProductRequest(problem), self._settings, self._request.inventories)

    def _compute(self, part: Span, made: SumOfParts, options: RunOptions) -> None:
        """Compute a part; its outcome goes into `made`, and if it is right its rows go into the file."""
        a, b = PartOfRows(self._request.a, part), self._request.b
        outcome = run_product(self._session, self._decisions[len(part)], a, b, self._settings, options)
        made.add(outcome, part)
        if not made.failed:
            wall.enter("write")
            exact = outcome.check is not None and outcome.check.kind == "exact"
            self._disk.write(part, outcome.c.array, exact=exact, before_it_counts=self._refuse_changed)

    def _refuse_changed(self) -> None:
        """HybridError where A or B is not any more what it was when this job began to read it."""
        for name, now in self._request.asked().items():
            if now != self._asked[name]:
                raise HybridError(
                    f"{name} was changed while this job read it: it was {self._asked[name]} and is {now}", code="file-changed"
                )


def _tell(progress: Progress, before: int, rows: int, of: int, phase: str, done: int, of_part: int) -> None:
    """Tell what is done of all rows that this job computes. What else is done for a part is not told."""
    if phase == "multiply" and of_part:
        progress(phase, int(_STEPS * (before + rows * done / of_part) / of), _STEPS)
