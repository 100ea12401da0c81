# SPDX-License-Identifier: MIT
"""The exercises: each is an entry of EXERCISES and a starter file, whose first comment has title, statement and hints. Kernels
are tried on random shapes, MPI programs in Python on one to four ranks."""

from __future__ import annotations

import json
import math
import re
import resource
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.classroom.mistakes import Finding
from hybrid.classroom.report import is_dear, lanes_of
from hybrid.classroom.student_file import text_of
from hybrid.classroom.trial import Case, Sizes, operands, wrong_in
from hybrid.core.problem import record
from hybrid.core.text import counted
from hybrid.emulation.child import new_folder, python_environment, supervised
from hybrid.emulation.confined import LARGEST_FILE, Bounds, confined, installed_with, of_students
from hybrid.emulation.observed import SHARED, Site
from hybrid.errors import HybridError, StartError, UsageError
from hybrid.ranks.launcher import mpirun

Part = tuple[str, int, int]  # of a judgement: its text, the points scored, the points possible
_RIGHT_POINTS = 6  # for right results, shared by the shapes
_DEMAND_POINTS = 4  # for each demand
_ALL = 1 << 10  # more than any exercise's shapes
_EDGES = (67, 71, 79)  # odd, and more than two tiles of 32
_SHORT, _TINY = range(17, 32, 2), range(2, 8)
_MOST = {3: 512, 2: 512, 1: 1 << 17}  # largest size, by the sizes a shape has: a thread takes microseconds on a CPU


@record
class Demand:
    """A demand on how a right kernel works, judged on the first shape."""

    text: str
    holds: Callable[[Case], bool]
    at_start: bool = False  # the starter file already meets it


@record
class Exercise:
    name: str
    demands: tuple[Demand, ...] = ()
    computes: str = ""  # what a first kernel must compute; "" for a product
    tile: tuple[int, int, int] = (16, 16, 16)  # the first shape is a multiple of it
    tiny: bool = False  # also tried on a shape smaller than a tile
    vector: bool = False  # m is 1
    begins_right: int = 0  # the starter file is right on this many of the first shapes
    only_with: Demand | None = None  # a right kernel that does not meet it is no solution
    of_ranks: bool = False  # an MPI program in Python, not a kernel: see judged_on_ranks

    @property
    def points(self) -> int:
        return _RIGHT_POINTS + _DEMAND_POINTS * (1 if self.of_ranks else len(self.demands))

    @property
    def file_name(self) -> str:
        return f"{self.name}{'.py' if self.of_ranks else '.cu'}"

    def shapes(self, seed: int, cases: str | None = None) -> tuple[Sizes, ...]:
        """The shapes on which a solution is tried, then those in the file `cases`. UsageError for a line that is no shape.

        For a product: whole tiles; a partial tile at each edge; a long sum; with `tiny`, less than a tile. For arrays: whole
        blocks; a partial block; tiny; large. For ranks: rows that four ranks can share equally, that they cannot, and too few.
        """
        random = np.random.default_rng(seed if self.of_ranks else [seed, *self.tile, self.vector])

        def one_of(*sizes: int) -> int:
            return int(random.choice(sizes))

        drawn: list[Sizes]
        if self.of_ranks:
            rows = (one_of(12, 24, 36), one_of(7, 11, 13), 2)
            drawn = [(n, one_of(*range(5, 40)), one_of(*range(5, 40))) for n in rows]
        elif self.computes:
            many = (range(8 << 10, 17 << 10, 1 << 10), range(501, 1001, 2), _TINY, range(30_001, 40_001, 2))
            edges = (range(64, 129, 32), range(67, 128, 2), _TINY, range(151, 200, 2))
            of_matrix = self.computes == "transpose"
            drawn = [(one_of(*each), one_of(*each))[: 1 + of_matrix] for each in (edges if of_matrix else many)]
        else:
            n, l, m = (one_of(*range(32 + -32 % tile, 65, tile)) for tile in self.tile)
            drawn = [(n, l, m), _EDGES, (one_of(*_SHORT), one_of(*range(151, 250, 2)), one_of(*_SHORT))]
            if self.tiny:
                drawn.append((one_of(*_TINY), one_of(*_TINY), one_of(*_TINY)))
        for number, line in enumerate(text_of(cases).splitlines(), 1) if cases else ():
            if words := line.partition("#")[0].split():
                length = len(drawn[0])
                if len(words) != length or not all(each.isdecimal() and 0 < int(each) <= _MOST[length] for each in words):
                    wanted = {3: "n l m", 2: "rows and columns", 1: "the number of elements"}[length]
                    text = f"a case of {self.name} is {wanted}, each from 1 to {_MOST[length]}"
                    raise UsageError(f"{cases}, line {number}: {line.strip()}: {text}", code="sizes")
                drawn.append(tuple(map(int, words)))
        return tuple((*sizes[:2], 1) if self.vector else sizes for sizes in drawn)

    def judged(self, cases: Sequence[Case], shapes: int) -> list[Part]:
        """The parts of a solution's judgement. `shapes`: their number; one without a case counts as wrong."""
        right = [case.is_right for case in cases] + [False] * (shapes - len(cases))
        met = [demand for demand in self.demands if right[0] and demand.holds(cases[0])]
        counted = right[self.begins_right :]
        if self.begins_right >= len(right):  # an unchanged starter file scores nothing
            met = met if any(not demand.at_start for demand in met) else []
            counted = right if met else []
        lacking = ""
        # A race or divergent barrier on one shape makes right results on others luck.
        if undefined := {fault.code for case in cases for fault in case.faults} & {"data-race", "kernel-barrier"}:
            lacking, met = f", but with {' and '.join(sorted(undefined))}", []
        elif self.only_with is not None and not any(map(self.only_with.holds, cases)):
            lacking = f", but not so that {self.only_with.text}"
        points = 0 if lacking or not counted else _RIGHT_POINTS * sum(counted) // len(counted)
        of_demands = [(demand.text, _DEMAND_POINTS * (demand in met), _DEMAND_POINTS) for demand in self.demands]
        return [(f"right on {sum(right)} of {len(right)} shapes{lacking}", points, _RIGHT_POINTS), *of_demands]

    def told(self) -> tuple[str, str, list[str], str]:
        """The title, the statement, the hints, and the text of the starter file."""
        lines = (Path(__file__).resolve().parent / "exercises" / self.file_name).read_text(encoding="utf-8").splitlines()
        comment = list(takewhile(lambda line: line.startswith(("//", "# ")) and "lab:" not in line, lines[1:]))
        title, *others = (line.lstrip("/# ") for line in comment)
        hints = [line[2:] for line in others if line.startswith("? ")]
        begin = [line for line in lines if line.lstrip("/# ")[:2] != "? "]
        return title.rstrip("."), " ".join(others[: len(others) - len(hints)]), hints, "\n".join([*begin, ""])


def named(name: str) -> Exercise:
    """The exercise of this name. UsageError where there is none."""
    for exercise in EXERCISES:
        if exercise.name == name:
            return exercise
    raise UsageError(f"there is no exercise {name}: {', '.join(each.name for each in EXERCISES)}", code="setting")


def _of_products(most: float, *, at_start: bool = False) -> Demand:
    text = f"at most {most:g} global loads per multiply-add"
    return Demand(text, lambda case: sum(case.outcomes[0].loads) <= most * math.prod(case.sizes), at_start)


def _of_elements(kind: str, most: float) -> Demand:
    does = "atomic updates" if kind == "atomic" else f"{kind}s"
    text = f"at most {most:g} {does} of global memory per element" if most else f"no {does} of global memory"
    return Demand(text, lambda case: lanes_of(case, kind) <= most * math.prod(case.sizes))


def _all_cheap(text: str, wanted: Callable[[Site], bool]) -> Demand:
    """The demand that there are such accesses, and that each costs the least possible."""
    return Demand(text, lambda case: {is_dear(site) for site in case.sites if wanted(site)} == {False})


def _writers(text: str, most: Callable[[Case], int]) -> Demand:
    return Demand(text, lambda case: case.outcomes[0].writers <= most(case))


_COALESCED = _all_cheap("all loads and stores of global memory are coalesced, or broadcast", lambda site: site.space != SHARED)
_COALESCED_LOADS = _all_cheap(
    "all loads of global memory are coalesced", lambda site: site.space != SHARED and site.kind == "load"
)
_NO_CONFLICTS = _all_cheap("no bank conflicts in shared memory", lambda site: site.space == SHARED)
_SHARED = Demand(  # elements stored there are read more often than stored
    "shared memory is used", lambda case: 0 < lanes_of(case, "store", shared=True) < lanes_of(case, "load", shared=True)
)
_WIDE = (32, 32, 32)

EXERCISES = (
    Exercise("add", computes="x + y"),
    Exercise("saxpy", computes="a·x + y"),
    Exercise("atomics", computes="sum"),
    Exercise("reduction", (_of_elements("atomic", 0), replace(_COALESCED_LOADS, at_start=True)), "sum", begins_right=_ALL),
    Exercise("histogram", (_of_elements("atomic", 1 / 4),), "histogram", begins_right=_ALL),
    Exercise("transpose", (_COALESCED, _NO_CONFLICTS), "transpose", begins_right=_ALL),
    Exercise("stencil", (_of_elements("load", 1.25),), "stencil", begins_right=_ALL),
    Exercise("constant", (_of_elements("load", 5),), "weighted sum of neighbours", begins_right=_ALL),
    Exercise("element", tiny=True),
    Exercise("row", (_writers("no more threads than rows compute C", lambda case: case.sizes[0]),)),
    Exercise(
        "column", (_writers("no more threads than columns compute C", lambda case: case.sizes[2]), _COALESCED), tile=(8, 16, 32)
    ),
    Exercise("vector", vector=True),
    Exercise("barriers", only_with=_SHARED),
    Exercise("edges", tiny=True, begins_right=1, only_with=_SHARED),
    Exercise("tiles", (_of_products(2 / 16), _SHARED), begins_right=_ALL),
    Exercise("stride", (_of_products(2 / 16),)),
    Exercise("coalesce", (_COALESCED,), tile=_WIDE, begins_right=_ALL),
    Exercise("conflicts", (_NO_CONFLICTS, _of_products(2 / 32, at_start=True)), tile=_WIDE, begins_right=_ALL),
    Exercise(
        "registers",
        (
            _writers("a thread computes at least four elements", lambda case: case.sizes[0] * case.sizes[2] // 4),
            _of_products(2 / 32),
            replace(_SHARED, at_start=True),
        ),
        tile=_WIDE,
        begins_right=_ALL,
    ),
    Exercise("ranks", of_ranks=True),
)


_DTYPE = "float64"
_RANKS = (1, 2, 3, 4)


def judged_on_ranks(shapes: Sequence[Sizes], path: str, seconds: int, seed: int) -> tuple[list[str], list[Part], str]:
    """Judge an MPI solution: its report's lines, its parts, and the first fault in a line, or "". It is tried on 1 to 4 ranks, up
    to a number on which it hangs.

    UsageError if the file cannot be read, HybridError without mpirun.
    """
    text, lines, why, right, several = text_of(path), list[str](), "", 0, len(_RANKS) - 1
    try:
        for ranks in _RANKS:
            rows, faults, is_shared = _on(ranks, shapes, Path(path).name, text, seconds, seed)
            lines += [f"{counted(ranks, 'rank')}  {'; '.join(rows)}", *(f"  * {fault.line}" for fault in faults)]
            why = why or "".join(f"{counted(ranks, 'rank')}: {fault.line}" for fault in faults[:1])
            right += ranks > 1 and is_shared and not faults  # the starter file is right on one rank
            if ranks < _RANKS[-1] and any(fault.code == "no-end" for fault in faults):
                lines.append("more ranks were not tried")
                break
    except StartError as missing:
        raise HybridError(f"the exercise needs MPI: {missing}", code="mpi-missing") from None
    shared = right == several and not why
    parts = [
        (f"right and shared on {right} of {several} numbers of ranks", _RIGHT_POINTS * right // several, _RIGHT_POINTS),
        ("each rank multiplies its share of the rows, and no more", _DEMAND_POINTS * shared, _DEMAND_POINTS),
    ]
    return lines, parts, why


def _on(
    ranks: int, shapes: Sequence[Sizes], file: str, text: str, seconds: int, seed: int
) -> tuple[list[str], list[Finding], bool]:
    """Try a copy of a solution on this number of ranks, in a folder of its own.

    Returns a line for each shape that gave a result, with the rows that each rank multiplied; what is wrong; and whether the
    ranks multiply each row once and share the rows equally.
    """
    with new_folder() as folder:
        results, copy = folder / "results.jsonl", folder / "solution" / file
        copy.parent.mkdir()  # apart from the results, since Python imports from the script's folder
        copy.write_text(text, encoding="utf-8")
        launcher, words = mpirun(ranks), [str(copy), results.name, str(seed), *(",".join(map(str, sizes)) for sizes in shapes)]
        # mpi4py's runner ends all ranks when one of them raises.
        command = [*launcher, sys.executable, "-m", "mpi4py", "-m", "hybrid.classroom.exercise", *words]
        with confined(Bounds(seconds, folder, installed_with(launcher[0]), ranks=True)) as confine:
            environment = of_students(python_environment(), folder)
            ended = supervised(command, seconds, confine, stdin=subprocess.DEVNULL, cwd=folder, env=environment)
        is_own = results.is_file() and not results.is_symlink()
        lines = results.read_text(encoding="utf-8", errors="replace").splitlines() if is_own else []
    names, shown, faults, is_shared = ["×".join(map(str, sizes)) for sizes in shapes], [], [], True
    for line, sizes, name in zip(lines, shapes, names, strict=False):
        rows, wrong = _outcome(line, sizes, ranks, seed)
        shown.append(f"{name}: rows {', '.join(map(str, rows))}")
        faults += [Finding(f"{name}: {text}", code) for code, text in wrong.items()]
        is_shared &= sum(rows) == sizes[0] and max(rows) <= -(-sizes[0] // ranks)
    if ended.status is None:
        text = f"it had not ended after {seconds} s: does every rank take part in each collective call?"
        faults.append(Finding(text, "no-end"))
    elif ended.status or len(shown) < len(shapes):
        faults.append(_cause(ended.out + ended.err, "".join(names[len(shown) :][:1]), ended.status, file))
    return shown, faults, is_shared


def _outcome(line: str, sizes: Sizes, ranks: int, seed: int) -> tuple[tuple[int, ...], dict[str, str]]:
    """From a line of rank 0's results: the rows that each rank multiplied, and what is wrong with C, by code. All of the line is
    verified, since the student's code can write there, too."""
    right = operands(sizes, _DTYPE, seed)[-1]
    try:
        told = json.loads(line)
        rows, c = tuple(map(int, told["rows"])), np.asarray(told["c"], _DTYPE)
        if tuple(told["sizes"]) != sizes or len(rows) != ranks:
            raise ValueError
    except (ValueError, TypeError, KeyError):
        return (0,) * ranks, {"no-result": "what came from rank 0 is no result of multiply"}
    if told["c"] is None:
        return rows, {"no-result": "rank 0 returns None"}
    if c.shape != right.shape:
        shape = "×".join(map(str, c.shape)) or "a number"
        return rows, {"shapes": f"C is {shape}, and should be {'×'.join(map(str, right.shape))}"}
    wrong, _ = wrong_in(c, right)
    if not len(wrong):
        return rows, {}
    row, column = divmod(int(wrong[0]), right.shape[1])
    return rows, {"wrong-elements": f"{len(wrong)} of {c.size} elements are wrong, the first is C[{row}][{column}]"}


def _cause(out: str, unanswered: str, status: int, file: str) -> Finding:
    """Why a program ended: the error of Python's traceback with its line in `file`; else the exit status and the last line
    printed before the launcher's message, which begins with a line of dashes or the like. `unanswered`: the first shape without
    a result, or ""."""
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if line.startswith("Traceback"):
            error = next((each for each in lines[number + 1 :] if each.split(":")[0].isidentifier()), "")
            traced = " ".join(lines[number : lines.index(error, number) if error else None])
            places = re.findall(rf'/{re.escape(file)}", line (\d+)', traced)
            return Finding((error or line) + (f" (line {places[-1]})" if places else ""), "raised")
    printed = [*takewhile(lambda line: any(map(str.isalnum, line)), lines)][-1:]
    ended = f"{unanswered}: the program ended before multiply had returned on every rank" if unanswered else "the program ended"
    return Finding(": ".join([f"{ended}, with exit status {status}", *printed]), "exit-status")


def main(file: str, results: str, seed: str, *shapes: str) -> None:
    """What each rank of `python -m hybrid.classroom.exercise FILE.py RESULTS SEED N,L,M ...` does: call the student's
    multiply(comm, a, b, product) for each shape. Rank 0 then writes a JSON line with C and the rows that each rank multiplied."""
    from hybrid.ranks.mpi import all_processes, leave

    comm = all_processes()
    # Not before MPI has started: its shared memory is a larger file.
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    multiply = runpy.run_path(file).get("multiply")
    if not callable(multiply):
        raise AttributeError(f"{Path(file).name} has no function multiply(comm, a, b, product)")
    own, multiplied = comm.Dup(), list[int]()  # the student's unmatched messages must not meet ours

    def product(rows: Any, right: Any) -> Any:
        multiplied.append(len(rows))
        return np.asarray(rows) @ np.asarray(right)

    for shape in shapes:
        sizes = tuple(map(int, shape.split(",")))
        given = operands(sizes, _DTYPE, int(seed))[:2] if comm.rank == 0 else (None, None)
        multiplied.clear()
        c = multiply(comm, *given, product)
        rows = own.gather(sum(multiplied))
        if comm.rank == 0:
            outcome = {"sizes": sizes, "rows": rows, "c": None if c is None else np.asarray(c, _DTYPE).tolist()}
            with Path(results).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(outcome) + "\n")
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
