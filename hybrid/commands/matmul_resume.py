# SPDX-License-Identifier: MIT
"""`--resume` of python -m hybrid.matmul computes C in parts and writes each to the disk before the next. So a later job can
resume, and memory holds only some rows of A and columns of B. The next part's rows of A are read while one is multiplied."""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import shlex
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid.core.installation import is_own
from hybrid.core.problem import Span, Topology, pieces, record
from hybrid.core.settings import Settings
from hybrid.core.text import tell_nobody
from hybrid.core.timeline import Spread, wall
from hybrid.errors import DoesNotFit, HybridError, UsageError
from hybrid.execution.rank_run import Progress
from hybrid.execution.session import agree, threads_until_decided
from hybrid.host.files import allocated, code_of_reading, discard, flush, flush_names, led_to, publish, write_whole, written_to
from hybrid.host.threads import on_threads, rows_of_about
from hybrid.planning.decision import Decision, Machine, decide
from hybrid.planning.plan import Plan
from hybrid.planning.tiling import PlanRequest
from hybrid.ranks.heartbeat import busy, tell_how_to_go_on
from hybrid.ranks.launcher import launched
from hybrid.ranks.team import Team
from hybrid.reporting.run_report import parts_line
from hybrid.runs.matrix_file import MatrixOutput, matrix_name
from hybrid.runs.measured import NOTHING, Outcome, Parts, RepeatedProduct, Room
from hybrid.runs.operands import TypedProduct
from hybrid.verification.check import Check

if TYPE_CHECKING:
    from hybrid.commands.matmul_run import Job

Line = dict[str, Any]
Facts = Mapping[str, str]

_MARK: Line = {"journal": "hybrid.matmul", "schema": 4}  # in the first line


@record
class Tile:
    """A part of the product: rows of A times columns of B."""

    rows: Span
    columns: Span

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)


def _serpentine(shape: tuple[int, int], rows: int, columns: int) -> list[Tile]:
    """Tiles of `rows` × `columns` of a matrix, down the first slab of columns and up the next: successive tiles share rows or
    columns."""
    slabs = list(pieces(Span(0, shape[1]), max(1, columns)))
    bands = list(pieces(Span(0, shape[0]), rows))
    return [Tile(band, slab) for number, slab in enumerate(slabs) for band in (bands[::-1] if number % 2 else bands)]


@record
class State:
    """A journal's content. `begun`: the byte at which the file's rows begin; `written`: the digests of the parts in the file."""

    asked: Facts
    rows: int  # of a part
    columns: int
    begun: int
    written: Mapping[Tile, str]


class Journal:
    """A journal, open for writing and locked until this process ends. `state`: its content when it was opened; `empty`: it has no
    lines."""

    def __init__(self, path: str) -> None:
        """Open or create the journal, and lock it. UsageError if another job has it, others may write to it, or it is none."""
        self._path = path
        while True:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if not is_own(self._file):
                why = "belongs to another user, or others may write to it: it could name rows that no product has"
                raise UsageError(f"{path} {why}; remove it, or name another file", code="file-shared")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"{path} is locked: another job writes it", code="file-locked") from None
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # a file system without locks
                    raise
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(self._file)):
                    break
            os.close(self._file)  # another job has removed it meanwhile
        flush_names(os.path.dirname(path))
        self.state, self._end = _read(os.pread(self._file, os.fstat(self._file).st_size, 0), path)
        os.ftruncate(self._file, self._end)

    def begin(self, first: Line) -> None:
        """Replace all lines by this first one."""
        os.ftruncate(self._file, 0)
        os.fsync(self._file)
        self._end = 0
        self.append({**_MARK, **first})

    def append(self, line: Line) -> None:
        """Append a line and sync it to the disk."""
        # Names of files need not be UTF-8: the json module reads "surrogatepass" back.
        data = (json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n").encode(errors="surrogatepass")
        write_whole(self._file, data, self._end)
        os.fsync(self._file)
        self._end += len(data)

    @property
    def empty(self) -> bool:
        return self._end == 0

    def remove(self) -> None:
        os.unlink(self._path)
        flush_names(os.path.dirname(self._path))


def _read(data: bytes, path: str) -> tuple[State | None, int]:
    """A journal's content, None without lines, and the bytes of its lines up to the first that is unreadable. UsageError if the
    file begins as no journal does."""
    lines, end = list[Line](), 0
    *whole, torn = data.split(b"\n")
    with suppress(ValueError, RecursionError):
        for text in whole:
            if not isinstance(line := json.loads(text), dict):
                break
            lines.append(line)
            end += len(text) + 1
    begins = json.dumps(_MARK, ensure_ascii=False)[:-1].encode()
    if not (_MARK.items() <= lines[0].items() if lines else not whole and begins.startswith(torn[: len(begins)])):
        raise UsageError(f"{path} is no journal of this version: remove it, or name another file", code="file-exists")
    if not lines:
        return None, end
    first, *parts = lines
    written = {Tile(Span(*line["rows"]), Span(*line["columns"])): line["digest"] for line in parts}  # the last line counts
    return State(first["asked"], first["rows"], first["columns"], first["begun"], written), end


_PARTS, _LEAST_BYTES = 50, 256 << 20  # most parts of C, and least bytes of each: a killed job loses one part
_LEAST = 64  # rows of a rank in a part, and columns: fewer compute too little for the bytes read
_FASTER = 16  # bandwidth from memory to a device, relative to a disk's (assumed)


def shape_of_parts(
    state: State | None, product: TypedProduct, ranks: int, rows: int, fits: Callable[[int, int], bool]
) -> tuple[int, int]:
    """The rows and columns of a part: the journal's, or all columns if B fits into memory, else the shape that takes the least
    time to read.

    `rows`: of a part if the user chose them, else 0. `fits(rows, columns)`: whether there is memory for such a part.
    """
    if state:
        return rows or state.rows, state.columns
    (n, _, m), p = product.sizes, product.problem
    least = min(n, _LEAST * ranks)
    usual = rows or max(1, least, min(n, max(-(-n // _PARTS), _LEAST_BYTES // max(1, p.bytes(1, p.m)))))
    if fits(min(usual, n), m):
        return usual, m
    of_a, of_b = p.operand_bytes(p.n, p.l), p.operand_bytes(p.l, p.m)
    found = []
    widths = range(_LEAST * -(-m // _LEAST), 0, -_LEAST)
    for height in {min(rows, n)} if rows else {max(least, n >> halvings) for halvings in range(n.bit_length())}:
        most = m if rows else usual * m // height  # columns: a killed job would lose more than necessary
        widest = bisect_left(widths, True, key=lambda width: min(width, m) <= most and fits(height, min(width, m)))
        if widest < len(widths):
            # From the disk: B, and A for each slab, except the band in memory. From memory: B for each band, and A for each slab.
            bands, slabs = -(-n // height), -(-m // widths[widest])
            seconds = of_b + of_a * (slabs - (slabs - 1) / bands) + (of_b * bands + of_a * slabs) / _FASTER
            found.append((seconds, rows or height, min(m, _LEAST * -(-m // (_LEAST * slabs)))))
    return min(found, default=(0, rows or least, min(m, _LEAST)))[1:]


_WRITING = 0  # the rank that writes the journal; C is gathered on its node
_GROUP_BYTES = 4 << 20  # of a group of a part's rows with one digest; the node's ranks share the groups


class PartsFile:
    """The file and its journal. Every rank makes one and calls its methods. `there`: the parts that are in the file."""

    def __init__(self, team: Team, output: MatrixOutput, threads: int) -> None:
        """UsageError for a format that cannot be written in any order. `threads`: to write and compute digests."""
        if not output.by_rows:
            raise UsageError(f"{output.path}: --resume writes .npy, .h5 and .zarr, and no text", code="file-kind")
        self._team, self._output, self._threads = team, output, threads
        self._target = Path(led_to(output.path))
        self._part = self._target.with_name(f"{self._target.name}.part")
        self.name = f"{output.path}.part"  # as the user knows it
        self._journal: Journal | None = None  # on the rank that writes it
        self._begun = 0
        self._state: State | None = None
        self._found: Path  # where the rows were when this job began
        self.there: set[Tile] = set()
        self._writing = partial(written_to, self.name, self._part, output.size)

    def open(self) -> State | None:
        """Take the journal's lock, and read the journal."""
        journal = f"{self._target}.journal"
        with self._team.phase("agree", timed=False) as opening, self._writing():
            is_new = not os.path.lexists(journal)
            if is_new:  # with a journal, the file may be this product's own
                self._output.refuse(0)
            if self._team.rank == _WRITING:
                try:
                    if is_new and os.path.lexists(self._part):
                        why = f"{self._part} is there without its journal, {journal}: remove it, or name another file"
                        raise UsageError(why, code="file-exists")
                    self._journal = Journal(journal)
                    # Killed between renaming the file and removing the journal, a job has left the file under its final name.
                    opening.mine = self._journal.state, self._part if os.path.lexists(self._part) else self._target
                except UsageError as error:  # all ranks raise it below, without this rank's number
                    opening.mine = error
        found = opening.all[_WRITING]
        if isinstance(found, UsageError):
            raise found
        self._state, self._found = found
        return self._state

    def look(self, parts: Sequence[Tile]) -> None:
        """Find out which of these parts are in the file; if one has a wrong digest, none is used. DoesNotFit if the disk has no
        room for the others."""
        if self._state:
            self._begun = self._state.begun
            written = {part: self._state.written[part] for part in parts if part in self._state.written}

            def found(part: Tile, group: Span) -> int:
                with suppress(OSError):
                    return _group_digest(group, self._output.read_back(self._found, self._begun, group, part.columns))
                return 0  # a wrong one

            with self._team.phase("look", timed=False) as reading:
                reading.mine = {part: self._sum_of_groups(part, partial(found, part), "look") for part in written}
            sums = {part: sum(of_rank[part] for of_rank in reading.all) for part in written}
            is_right = all(_as_text(sums[part]) == written[part] for part in written)
            self.there = set(written) if is_right and (self._found == self._part or len(written) == len(parts)) else set()
        if not self.there:
            self._state = None
        with self._team.phase("look", timed=False), self._writing():
            if self._team.rank == _WRITING:
                if self.there and self._found == self._target:
                    os.replace(self._target, self._part)
                self._output.refuse(max(0, self._output.size - allocated(self._part)))

    def begin(self, asked: Facts, rows: int, columns: int) -> None:
        """Begin the file and its journal, unless they have parts to use. `rows`, `columns`: of a part."""
        with self._team.phase("write", timed=False) as beginning, self._writing():
            if self._journal is not None:
                if self._state is None:
                    discard(self._part)
                    self._begun = self._output.begin(self._part)
                self._output.make_room(self._part, self._begun)
                flush(self._part)
                flush_names(self._part.parent)
                if self._state is None:
                    self._journal.begin({"asked": dict(asked), "rows": rows, "columns": columns, "begun": self._begun})
                beginning.mine = self._begun
        self._begun = beginning.all[_WRITING]

    def write(self, part: Tile, c: np.ndarray, before_it_counts: Callable[[], None]) -> None:
        """Write the part's elements, then its line in the journal, and sync each to the disk before the next step.

        `before_it_counts`: called by one rank between the two; may raise.
        """

        def written(group: Span) -> int:
            values = c[group.within(part.rows).slice]
            self._output.write(self._part, self._begun, group, values, tell_nobody, part.columns)
            return _group_digest(group, values.reshape(-1).view(np.uint8))

        with self._team.phase("write", timed=False) as writing, self._writing():
            writing.mine = self._sum_of_groups(part, written, "write")
        with self._team.phase("write", timed=False), self._writing(), busy():
            if self._journal is not None:
                before_it_counts()
                flush(self._part)
                rows, columns = ([span.lo, span.hi] for span in (part.rows, part.columns))
                self._journal.append({"rows": rows, "columns": columns, "digest": _as_text(sum(writing.all))})
        self.there.add(part)

    def finish(self) -> None:
        """Give the complete file its final name."""
        with self._team.phase("write", timed=False), written_to(self._output.path), busy():
            if self._journal is not None:
                publish(self._part, str(self._target))
                flush_names(self._target.parent)
                self._journal.remove()

    def close(self) -> None:
        """Remove the file and its journal if a later job cannot use them."""
        if self._journal is not None and self._journal.empty:
            discard(self._part)
            self._journal.remove()

    def _sum_of_groups(self, part: Tile, digest: Callable[[Span], int], phase: str) -> int:
        """The sum of `digest` over this rank's share of the part's row groups, which do not depend on the number of ranks and
        threads."""
        members = self._team.topology.nodes[self._team.topology.node_of(_WRITING)]
        if self._team.rank not in members:
            return 0
        groups = list(rows_of_about(_GROUP_BYTES, part.rows, len(part.columns) * self._output.dtype.itemsize))
        own = Span(0, len(groups)).part(len(members), members.index(self._team.rank))
        self._team.enter(phase)
        return sum(on_threads(self._threads, digest, groups[own.slice], lambda digests: self._team.enter(phase)))


def _group_digest(rows: Span, data: np.ndarray) -> int:
    """A digest of the bytes of these rows. A part's digest is the sum over its groups, in any order."""
    return int.from_bytes(blake2b(data.data, digest_size=8, salt=rows.lo.to_bytes(16, "big")).digest(), "big")


def _as_text(total: int) -> str:
    return f"{total % 2**64:016x}"


_STEPS = 1000  # of the progress shown for a part


class ProductInParts:
    """A product that this job begins or resumes. Every rank makes one and calls its methods."""

    def __init__(self, job: Job, disk: PartsFile) -> None:
        """Find the parts that an earlier job has written. UsageError, on all ranks, if this job cannot resume from them."""
        self._job, self._team, self._product, self._disk = job, job.team, job.product, disk
        self.shape = job.product.sizes[0], job.product.sizes[2]
        state = disk.open()
        self._rows, self._columns = shape_of_parts(state, job.product, job.team.size, job.settings.resume_rows, self._fits)
        self._tiles = _serpentine(self.shape, self._rows, self._columns)
        shapes = dict.fromkeys([self._largest, *(tile.shape for tile in self._tiles)])
        self._decisions = {shape: self._decide(*shape) for shape in shapes}  # by the rows and columns of a part
        with self._team.phase("agree", timed=False) as asking:
            asking.mine = self._identity()
        self._asked: Facts = {**asking.all[0], "--resume-rows": str(self._rows)}
        if state:
            _refuse_other(state, self._asked, job.options.out)
        wall.enter("resume")
        disk.look(self._tiles)

    def run(self, progress: Progress) -> Outcome:
        """Compute, check and write the missing parts, and give the file its name. Stop at a part that fails its check. If the job
        is ended meanwhile, its message says how to resume."""
        made: Outcome | None = None
        plans, spared, parts = list[Plan](), 0, self.parts
        there = ""  # which of the part's A and B the first room already holds

        def tell(phase: str, done: int, of: int) -> None:
            if phase == "multiply":
                progress(phase, int(_STEPS * (len(plans) + done / max(1, of))), _STEPS * len(tiles))

        def refuse_changed() -> None:
            """HybridError if A or B has changed since this job began."""
            for name, now in self._identity().items():
                if now != self._asked[name]:
                    raise HybridError(f"{name} changed while this job ran: {self._asked[name]}, now {now}", code="file-changed")

        wall.enter("write")
        self._disk.begin(self._asked, self._rows, self._columns)
        self._say_how_to_resume()
        wall.enter("allocate")
        tiles = [tile for tile in self._tiles if tile not in self._disk.there]
        rooms = [Room(self._team, self.plan)] if tiles else []
        if tiles and self._rows < self.shape[0]:  # double buffering: the next part's rows of A are read into the last room
            rooms.append(Room(self._team, self.plan, beside=rooms[0]))
        for tile, following in zip_longest(tiles, tiles[1:]):
            decision, part = self._decisions[tile.shape], self._product.part(tile.rows, tile.columns)
            plan, p = decision.plan, part.problem
            reads_a = following is not None and following.rows != tile.rows
            reading = self._begin_reading(rooms[-1], following) if reads_a else None
            how: Any = {"progress": tell, "room": rooms[0], "there": there}
            outcome = RepeatedProduct(self._job.session, decision, part.sources(), self._job.settings, **how).outcome()
            plans.append(plan)
            held = {"A": p.operand_bytes(p.n, p.l), "B": p.operand_bytes(p.l, p.m)}
            spared += sum(held[key] for key in there)
            if outcome.check is not None:
                named = f"rows {tile.rows}" + (f" and columns {tile.columns}" if len(tile.columns) < self.shape[1] else "")
                check = outcome.check.of(f"in the part of {named}, counted from its first", tile.rows.lo)
                outcome = replace(outcome, check=check)
            made = outcome if made is None else made.followed_by(outcome)
            wall.enter("write")
            if not outcome.is_right:
                break
            self._disk.write(tile, outcome.c.array, refuse_changed)
            self._say_how_to_resume()
            if following is not None:
                next_plan = self._decisions[following.shape].plan
                same_b = following.columns == tile.columns and next_plan.b_stays_parted == plan.b_stays_parted
                there = "AB" if same_b else "A"
            if reading is not None:
                wall.enter("fill")
                with self._team.phase("fill", timed=False), busy():
                    reading.result()
                rooms.reverse()
        else:
            self._disk.finish()
        tell_how_to_go_on("")
        parts = replace(parts, plans=tuple(plans), spared=spared)
        if made is None:
            check = Check("checksums", 0.0, 0.0, ok=True, note="all parts were there")
            return Outcome(self.decision, NOTHING, {}, Spread(0.0, 0.0, 0.0), check, parts=parts)
        return replace(made, decision=self.decision, c=NOTHING, intervals=[], parts=parts)

    def _begin_reading(self, room: Room, tile: Tile) -> Future[None]:
        """Start a thread that reads this rank's rows of A into the room."""
        plan, reading = self._decisions[tile.shape].plan, Future[None]()
        rows, threads = plan.shares[self._team.rank].rows, threads_until_decided(self._team, self._job.settings)
        (a, _), into = self._product.part(tile.rows, tile.columns).sources(), room.matrices(plan, self._team.node)["A"][rows]

        def read() -> None:
            try:
                a.rows(rows, into, threads, tell_nobody)
                reading.set_result(None)
            except BaseException as error:
                reading.set_exception(error)

        Thread(target=read, daemon=True).start()
        return reading

    @property
    def parts(self) -> Parts:
        return Parts(self._rows, self._columns, len(self._disk.there), len(self._tiles))

    def note(self) -> str:
        """For the line of progress."""
        return f", {len(self._disk.there)} of {len(self._tiles)} parts are on the disk"

    @property
    def plan(self) -> Plan:
        """The plan of the largest part."""
        return self._decisions[self._largest].plan

    @property
    def decision(self) -> Decision:
        """The decision for the largest part, with the whole problem in its plan."""
        return replace(self._decisions[self._largest], plan=replace(self.plan, problem=self._product.problem))

    @property
    def _largest(self) -> tuple[int, int]:
        return min(self._rows, self.shape[0]), min(self._columns, self.shape[1])

    def _decide(self, rows: int, columns: int) -> Decision:
        """How a part of this shape is computed. Collective. DoesNotFit if memory is too short."""
        request = _request_of_part(self._product, self._team.topology, rows, columns)
        return agree(self._job.session, request, self._job.settings, self._job.inventories)

    def _identity(self) -> dict[str, str]:
        return _identity(self._product, self._job.options, self._job.settings)

    def _fits(self, rows: int, columns: int) -> bool:
        with suppress(DoesNotFit):
            self._decide(rows, columns)
            return True
        return False

    def _say_how_to_resume(self) -> None:
        """Set the message that says how to resume, for the supervisor to print if the job is ended."""
        launch = launched()
        before = [launch.name.split()[0], "-n", str(launch.size)] if launch else []
        python, *arguments = sys.orig_argv
        there = f"{len(self._disk.there)} of {len(self._tiles)} parts are in {self._disk.name}, go on with: "
        command = shlex.join([*before, os.path.basename(python), *arguments])
        tell_how_to_go_on(there + command) or tell_how_to_go_on(f"{there}the same command")


def _request_of_part(product: TypedProduct, topology: Topology, rows: int, columns: int) -> PlanRequest:
    """The request for parts of this shape, with memory for the next part's rows of A, which are read meanwhile."""
    problem, besides = product.part(Span(0, rows), Span(0, columns)).problem, tuple[int, ...]()
    if rows < product.sizes[0]:
        of_ranks = (len(topology.rows_of_rank(rank, rows)) for rank in range(topology.size))
        besides = tuple(problem.operand_bytes(of_rank, problem.l) for of_rank in of_ranks)
    return PlanRequest(problem, besides=besides)


_BEGINNING = 4096  # bytes: the header of most formats


def _identity(product: TypedProduct, options: argparse.Namespace, settings: Settings) -> dict[str, str]:
    """What identifies this product, in words: a job resumes only the same product. Called again to see whether the operands'
    files have changed."""

    def operand(name: str | None) -> str:
        if name is None:
            return options.fill if options.fill == "index" else f"{options.fill} of seed {options.seed}"
        found = matrix_name(name)
        return _fingerprint(found.file) + (f" /{found.inside}" if found.inside else "")

    target = matrix_name(options.out)
    return {
        "sizes": "×".join(map(str, product.sizes)),
        "dtype": str(product.types),
        "A": operand(options.a),
        "B": operand(options.b),
        "C": f"{target.form} /{target.inside}",
        "check": "off" if settings.check == "off" else "on",
    }


def _refuse_other(state: State, here: Facts, out: str) -> None:
    """UsageError if the journal of the file `out` is of another product than `here`."""
    there, file = state.asked, matrix_name(out).file
    if other := [f"{name} {there[name]} there, {here[name]} here" for name in here if there[name] != here[name]]:
        why = f"{file}.journal is of another product ({'; '.join(other)}): remove it and {file}.part"
        raise UsageError(why, code="resume-other")


def _fingerprint(path: str) -> str:
    """A text that changes with a file, or folder of files: size, time of the last change, and a digest of its first bytes.
    UsageError if it cannot be read."""
    target = Path(os.path.realpath(path))
    size, changed, digest = 0, 0, blake2b(digest_size=4)
    try:
        for file in sorted(each for each in target.rglob("*") if each.is_file()) if target.is_dir() else (target,):
            found = file.stat()
            size, changed = size + found.st_size, max(changed, found.st_mtime_ns)
            if file == target:
                with open(file, "rb") as opened:
                    digest.update(opened.read(_BEGINNING))
            else:
                name = f"{file.relative_to(target)} {found.st_size} {found.st_mtime_ns}\n"
                digest.update(name.encode(errors="surrogateescape"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", code=code_of_reading(error)) from None
    seconds, nanoseconds = divmod(changed, 10**9)
    return f"{target} ({size} bytes, changed at {seconds}.{nanoseconds:09d}, {digest.hexdigest()})"


def part_to_explain(
    machine: Machine, product: TypedProduct, options: argparse.Namespace, settings: Settings
) -> tuple[PlanRequest, str]:
    """For `--explain`: the request for a part, and a line about it, from the journal and without reading the parts."""
    state = None
    if os.path.lexists(journal := f"{led_to(matrix_name(options.out).file)}.journal"):
        with suppress(HybridError):  # an unreadable journal tells nothing
            state, _ = _read(Path(journal).read_bytes(), journal)
    n, _, m = product.sizes

    def fits(rows: int, columns: int) -> bool:
        return decide(machine, _request_of_part(product, machine.topology, rows, columns), settings).shortage is None

    shape = shape_of_parts(state, product, machine.topology.size, settings.resume_rows, fits)
    if state:
        _refuse_other(state, {**_identity(product, options, settings), "--resume-rows": str(shape[0])}, options.out)
    parts = Parts(*shape, len(state.written) if state else 0, len(_serpentine((n, m), *shape)))
    line = parts_line(parts, (n, m), f"{options.out}.journal").strip()
    return _request_of_part(product, machine.topology, min(shape[0], n), shape[1]), f"{line}; the plan of a part:"
