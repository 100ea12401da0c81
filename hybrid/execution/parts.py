# SPDX-License-Identifier: MIT
"""A product part by part: some rows of A and C at a time, checked and on the disk before the next. A later job can go on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hybrid.arrays.sources import MatrixSource, PartOfRows
from hybrid.core.problem import Problem, record
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, pieces
from hybrid.core.text import counted, ranges
from hybrid.core.timeline import Spread, wall
from hybrid.errors import DoesNotFit, HybridError, UsageError
from hybrid.execution.outcome import Outcome, Parts, Progress, RunOptions
from hybrid.execution.product import run_product
from hybrid.host.files import Journal, Line, discard, written_to
from hybrid.host.matrix_file import Frame, MatrixOutput, PartialMatrix, digests_in_memory, joined_digest
from hybrid.host.memory import RowView, processor
from hybrid.plan.arithmetic import Computed, joined
from hybrid.plan.plan import Plan
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team
from hybrid.selection.decision import Decision, ProductRequest
from hybrid.selection.machine import Inventory
from hybrid.selection.session import Session, agree
from hybrid.verification.check import Check, worse_of

# -------- part request
# How many rows the parts of a product have, and what has to be the same for a later job to go on with them.

_SECONDS_OF_A_PART = 60.0  # about: so much work does a job lose that is killed
# Operations a second, of float64: too few rather than too many, so that a part takes no longer.
_OF_A_THREAD, _OF_AN_EMULATED_THREAD, _OF_A_GPU = 2e10, 1e8, 3e13
_ROWS_OF_A_RANK = 64  # the fewest in a part: with fewer, too little is computed for each time that B is read
_NAMES_SHOWN = 4  # the most different processors or GPUs that are named

Facts = Mapping[str, str]
ROWS_OF_A_PART = "rows of a part"  # one of the facts that are asked for


def sample_of(problem: Problem, ranks: int) -> Problem:
    """The smallest part that there may be. What is decided for it tells which devices multiply."""
    return Problem(min(problem.n, _ROWS_OF_A_RANK * ranks), problem.l, problem.m, problem.dtype)


def rows_of_a_part(problem: Problem, sample: Decision) -> int:
    """As many rows as these devices multiply in about a minute, or all."""
    threads = sum(placement.threads.count for placement in sample.placements)
    gpus = len({placement.gpu.uuid for placement in sample.placements if placement.gpu})
    speed = {"cpu": threads * _OF_A_THREAD, "cuda": gpus * _OF_A_GPU}.get(sample.plan.device, threads * _OF_AN_EMULATED_THREAD)
    of_a_row = max(1, problem.operations // max(1, problem.n))
    least = sample_of(problem, sample.plan.topology.size).n
    return max(1, min(problem.n, max(least, int(_SECONDS_OF_A_PART * speed / of_a_row))))


def parts_of(problem: Problem, rows: int) -> list[Span]:
    """The rows of each part."""
    return list(pieces(Span(0, problem.n), rows))


def problem_of(problem: Problem, part: Span) -> Problem:
    """The product that gives a part."""
    return Problem(len(part), problem.l, problem.m, problem.dtype)


def arithmetic(decision: Decision, version: str, processors: Sequence[str]) -> dict[str, str]:
    """All on which the last bits of a part may depend beside the operands, where the product is not exact.

    `version`: of this program. `processors`: of all ranks.
    """
    plan = decision.plan
    facts = {
        "ranks": f"{plan.topology.size} on {counted(len(plan.topology.nodes), 'node')}",
        "device": plan.device,
        "kernel": decision.kernel.name,
        "precision": f"{plan.moduli} moduli" if plan.moduli else "native",
        "version": version,
    }
    if plan.device == "cuda":
        facts["GPUs"] = _listed([placement.gpu.name for placement in decision.placements if placement.gpu])
    else:
        facts["threads"] = ranges(sorted({placement.threads.count for placement in decision.placements}))
        facts["processors"] = _listed(processors)
        facts["NumPy"] = f"{np.__version__} with {_blas()}"
    return {**facts, "tiles": _digest_of_tiles(plan)}


def differences(there: Facts, here: Facts) -> Iterator[str]:
    """Each fact that is not the same, in words."""
    for name in {**there, **here}:
        if there.get(name) != here.get(name):
            yield f"{name} {there.get(name, 'not known')} there, {here.get(name, 'not known')} here"


def _listed(names: Sequence[str]) -> str:
    """The names in their order, since they belong to ranks; a single one where all are the same."""
    if len(set(names)) == 1:
        return names[0]
    shown = ", ".join(dict.fromkeys(names[:_NAMES_SHOWN]))
    return f"{shown} ({blake2b(chr(0).join(names).encode(), digest_size=4).hexdigest()})"


def _blas() -> str:
    """The BLAS library with which NumPy was built."""
    try:
        found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{found['name']} {found['version']}"
    except (KeyError, TypeError):
        return "an unknown BLAS"


def _digest_of_tiles(plan: Plan) -> str:
    """A digest of which rank multiplies which rows in which tiles, and in which order it adds them up."""
    return blake2b(repr((plan.shares, plan.grid_layout)).encode(), digest_size=4).hexdigest()


# -------- part journal
# The journal of a product in parts: what was asked for, and which rows are in the file.

MARK: Mapping[str, Any] = {"journal": "hybrid.matmul", "schema": 1}


@record
class Written:
    """A part of which the rows are in the file. `exact`: the elements are integers, and so the same in any arithmetic."""

    rows: Span
    digest: str
    exact: bool
    arithmetic: Facts


@record
class State:
    """All that the journal says. `rows`: of a part; 0 where the journal says nothing yet."""

    asked: Facts
    rows: int = 0
    frame: Frame | None = None
    written: tuple[Written, ...] = ()
    arithmetic: Facts | None = None  # of the last job that wrote the journal

    def refuse_other(self, asked: Facts, arithmetic: Facts, files: str) -> None:
        """UsageError where now another product is asked for, or where some rows may have other bits than they would get now.

        `files`: the names of those that would have to be removed.
        """
        if self.frame is None:
            return
        other = list(differences(self.asked, asked))
        if len(other) == 1 and asked.get(ROWS_OF_A_PART) != self.asked.get(ROWS_OF_A_PART):
            raise UsageError(
                f"{files} were begun with parts of {self.rows} rows: leave out --resume-rows, or give --resume-rows {self.rows}",
                code="resume-other",
            )
        if other:
            raise UsageError(
                f"{files} are of another product ({'; '.join(other)}): remove them, or leave out --resume", code="resume-other"
            )
        for part in self.written:
            other = [] if part.exact else list(differences(part.arithmetic, arithmetic))
            if len(other) > 1:  # the tiles differ because of the other facts, and their digest tells a user nothing
                other = [each for each in other if not each.startswith("tiles")]
            if other:
                raise UsageError(
                    f"{files} have rows whose last bits may be others than here ({'; '.join(other)}): "
                    "go on as they were computed, or remove them to begin anew",
                    code="resume-other",
                )


def state_of(lines: Sequence[Line], path: str) -> State:
    """What the journal's lines say together. UsageError where they make no sense."""
    if not lines:
        return State({})
    try:
        first = lines[0]
        rows, frame = int(first["rows"]), Frame(**first["frame"])
        if rows < 1:
            raise ValueError(f"parts of {rows} rows")
        written = {part.rows: part for part in _written(lines[1:])}  # the last line of each counts
        arithmetics = [dict(line["arithmetic"]) for line in lines if "arithmetic" in line]
        return State(dict(first["asked"]), rows, frame, tuple(written.values()), arithmetics[-1] if arithmetics else None)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is malformed ({type(error).__name__}: {error}): remove it to begin anew", code="file-format"
        ) from None


def _written(lines: Sequence[Line]) -> Iterator[Written]:
    """The parts that the lines name, in their order, each with the arithmetic that was last named before."""
    arithmetic: Facts = {}
    for line in lines:
        if "arithmetic" in line:
            arithmetic = line["arithmetic"]
        else:
            lo, hi = line["part"]
            yield Written(Span(lo, hi), line["digest"], bool(line["exact"]), arithmetic)


def first_line(asked: Facts, rows: int, frame: Frame) -> Line:
    """The journal's first line."""
    return {"asked": dict(asked), "rows": rows, "frame": asdict(frame)}


def arithmetic_line(arithmetic: Facts) -> Line:
    """A line that says in which arithmetic the parts after it are computed."""
    return {"arithmetic": dict(arithmetic)}


def part_line(rows: Span, digest: str, *, exact: bool) -> Line:
    """A line that says that a part is in the file."""
    return {"part": [rows.lo, rows.hi], "digest": digest, "exact": exact}


# -------- parts on disk
# The rows of C that are on the disk, and their journal: opened, looked at, and written by all ranks of a team.
#
# A part counts when its rows are on the disk, and after them its line in the journal. So a job that is killed at any moment
# loses the part that was under way at most. The file gets its name when all parts are there; then the journal is removed.

_WRITING = 0  # the rank that writes the journal; C is gathered on its node

_Group = TypeVar("_Group")


class PartsOnDisk:
    """One rank's part of it. Every rank makes one, and calls its methods. `there`: the parts that are in the file."""

    def __init__(self, team: Team, output: MatrixOutput, problem: Problem) -> None:
        """UsageError where the file cannot be written in parts."""
        self._team, self._output = team, output
        self._file = PartialMatrix(output, problem.n, problem.bytes(1, problem.m))
        self._journal: Journal | None = None  # on the rank that writes it, while it is open
        self._named = False  # all is there, and the file has its name
        self.state = State({})
        self.there: frozenset[Span] = frozenset()

    @property
    def rows_there(self) -> int:
        return sum(map(len, self.there))

    @property
    def name(self) -> str:
        """The name of the file that has the rows."""
        return self._output.path if self._named else self._file.name

    def open(self) -> None:
        """Take the journal's lock, and read the journal."""
        with self._team.phase("agree", timed=False) as opening, written_to(self._file.name):
            if not os.path.lexists(self._file.journal):  # with a journal, what is there may be this job's own
                self._output.refuse(0)
            if self._writes:
                try:
                    opening.mine = self._opened().lines
                except UsageError as error:  # all ranks shall raise it alike, without this rank's number
                    opening.mine = error
        lines = opening.all[_WRITING]
        if isinstance(lines, UsageError):
            raise UsageError(str(lines), code=lines.code)
        self.state = state_of(lines, self._file.journal)

    def _opened(self) -> Journal:
        """The journal, open and locked, on the rank that writes it."""
        part, journal = self._file.part, self._file.journal
        if os.path.lexists(part) and not os.path.lexists(journal):
            raise UsageError(
                f"{part} is there without its journal, {journal}: remove it, or name another file", code="file-exists"
            )
        self._journal = Journal(journal, MARK)
        return self._journal

    def refuse_other(self, asked: Facts, arithmetic: Facts) -> None:
        """UsageError where the rows that are there are of another product, or may have other last bits."""
        self.state.refuse_other(asked, arithmetic, f"{self._file.name} and {self._output.path}.journal")

    def look(self, parts: Sequence[Span]) -> None:
        """Find out by their digests which of these parts are in the file. DoesNotFit where there is no room for the others."""
        written = {part.rows: part.digest for part in self.state.written if part.rows in parts}
        with self._team.phase("look", timed=False) as finding:
            finding.mine = self._found(complete=len(written) == len(parts)) if self._writes else None
        path: Path | None = finding.all[_WRITING]
        digests = self._digests(path, list(written)) if path is not None else {}
        self.there = frozenset(part for part, of_groups in digests.items() if joined_digest(of_groups) == written[part])
        self._named = path == self._file.target and len(self.there) == len(parts)
        if path is None or (path == self._file.target and not self._named):
            self.there, self.state = frozenset(), State({})  # nothing of it can be used
        with self._team.phase("look", timed=False), written_to(self._file.name):
            if self._writes and not self._named:
                self._file.refuse()

    def _found(self, *, complete: bool) -> Path | None:
        """The file with the rows; None where there is none that can be used.

        A job that was killed after it named the file and before it removed the journal has left it at its final place.
        """
        file, frame = self._file, self.state.frame
        if frame is None:
            return None
        if os.path.lexists(file.part):
            return file.part if file.is_framed(file.part, frame) else None
        return file.target if complete and file.is_framed(file.target, frame) else None

    def _digests(self, path: Path, parts: Sequence[Span]) -> dict[Span, list[bytes]]:
        """The digests of the groups of rows of each part, as the file has them."""
        frame, told = self.state.frame, partial(self._team.enter, "look")
        assert frame is not None
        mine = self._mine([(part, group) for part in parts for group in self._file.groups(part)])
        with self._team.phase("look", timed=False) as reading, written_to(self._file.name):
            digests = self._file.digests_on_disk(path, frame, [group for _, group in mine], told)
            reading.mine = [(part, digest) for (part, _), digest in zip(mine, digests, strict=True)]
        of_parts: dict[Span, list[bytes]] = {part: [] for part in parts}
        for part, digest in chain.from_iterable(reading.all):
            of_parts[part].append(digest)
        return of_parts

    def begin(self, asked: Facts, rows: int, arithmetic: Facts) -> None:
        """Begin file and journal, unless rows are there that can be used. `rows`: of a part."""
        with self._team.phase("write", timed=False) as beginning, self._written_to():
            if self._journal is not None:
                if self.state.frame is None:
                    self._journal.forget()
                    frame = self._file.begin()
                    self._journal.begin(first_line(asked, rows, frame))
                    self.state = State(asked, rows, frame)
                if self.state.arithmetic != arithmetic and not self._named:
                    self._journal.append(arithmetic_line(arithmetic))
                beginning.mine = self.state.frame
        self.state = replace(self.state, frame=beginning.all[_WRITING])

    def write(self, part: Span, c: np.ndarray, *, exact: bool, before_it_counts: Callable[[], None]) -> None:
        """Write the part's rows, and then the journal's line, each of which is on the disk before the next step.

        `before_it_counts`: is called by one rank between the two, and may raise.
        """
        frame, told = self.state.frame, partial(self._team.enter, "write")
        assert frame is not None
        mine = self._mine(self._file.groups(part))
        with self._team.phase("write", timed=False) as writing, self._written_to():
            self._file.write(frame, part, c, mine, told)
            writing.mine = digests_in_memory(part, c, mine, told)
        digest = joined_digest(chain.from_iterable(writing.all))
        with self._team.phase("write", timed=False), self._written_to(), busy():
            if self._journal is not None:
                before_it_counts()
                self._file.flush()
                self._journal.append(part_line(part, digest, exact=exact))
        self.there |= {part}

    def finish(self) -> None:
        """Give the file its name, when it has all parts."""
        with self._team.phase("write", timed=False), written_to(self._output.path), busy():
            if self._journal is not None:
                if not self._named:
                    self._file.publish()
                self._journal.remove()
        self._journal, self._named = None, True

    def close(self) -> None:
        """Give the journal's lock back. Files that are of no use to a later job are removed."""
        if self._journal is not None:
            if self._journal.lines:
                self._journal.close()
            else:
                discard(self._file.part)
                self._journal.remove()
            self._journal = None

    @property
    def _writes(self) -> bool:
        """Whether this rank has the journal."""
        return self._team.rank == _WRITING

    def _written_to(self) -> AbstractContextManager[None]:
        return written_to(self._file.name, self._file.part, self._file.size)

    def _mine(self, groups: Sequence[_Group]) -> Sequence[_Group]:
        """This rank's share of the groups of rows: the ranks of one node share them, in their order."""
        members = self._team.topology.nodes[self._team.topology.node_of(_WRITING)]
        if self._team.rank not in members:
            return []
        return groups[Span(0, len(groups)).part(len(members), members.index(self._team.rank)).slice]


# -------- sum of parts
# The times, checks and arithmetic of a product in parts, from those of its parts.

NOTHING_LEFT = Check("checksums", 0.0, 0.0, ok=True, note="all rows were there")


class SumOfParts:
    """Grows by the outcome of each part."""

    def __init__(self) -> None:
        self.last: Outcome | None = None  # whose matrices the next part takes over
        self.check: Check | None = None
        self._phases: dict[str, float] = {}
        self._total = 0.0
        self._arithmetic: Computed = {}
        self._plans: list[Plan] = []

    def add(self, outcome: Outcome, part: Span) -> None:
        self.last = outcome
        self._plans.append(outcome.decision.plan)
        for phase, spread in outcome.phases.items():
            self._phases[phase] = self._phases.get(phase, 0.0) + spread.median
        self._total += outcome.total.median
        self._arithmetic = joined([self._arithmetic, outcome.arithmetic])
        if outcome.check is not None:
            named = outcome.check.of(f"in the part of rows {part}, counted from {part.lo}", part.lo)
            self.check = worse_of(self.check, named)

    @property
    def failed(self) -> bool:
        """Whether a part has failed its check."""
        return self.check is not None and not self.check.ok

    def outcome(self, decision: Decision, rows: int, there: int) -> Outcome:
        """The outcome of the whole product. `decision`: for the whole problem. `rows`: of a part. `there`: the rows that were
        there before."""
        nothing = RowView(np.empty((0, 0)), Span(0, 0))
        phases = {phase: Spread(seconds, seconds, seconds) for phase, seconds in self._phases.items()}
        total, check = Spread(self._total, self._total, self._total), self.check if self._plans else NOTHING_LEFT
        parts = Parts(rows, there, tuple(self._plans))
        return Outcome(decision, nothing, nothing, nothing, phases, total, check, arithmetic=self._arithmetic, parts=parts)


# -------- product in parts
# A product part by part: some rows of A and C at a time, which are checked and on the disk before the next, so that a later
# job can go on.

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
