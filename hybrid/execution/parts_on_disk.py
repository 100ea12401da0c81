# SPDX-License-Identifier: MIT
"""The rows of C that are on the disk, and their journal: opened, looked at, and written by all ranks of a team.

A part counts when its rows are on the disk, and after them its line in the journal. So a job that is killed at any moment loses
the part that was under way at most. The file gets its name when all parts are there; then the journal is removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.execution.part_journal import MARK, State, arithmetic_line, first_line, part_line, state_of
from hybrid.execution.part_request import Facts
from hybrid.host.files import discard, written_to
from hybrid.host.journal import Journal
from hybrid.host.matrix_output import MatrixOutput
from hybrid.host.partial_matrix import PartialMatrix, digests_in_memory, joined_digest
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team

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
