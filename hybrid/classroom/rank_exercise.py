# SPDX-License-Identifier: MIT
"""The exercise whose solution is a Python program with MPI. Solutions are tried on one to four ranks."""

from __future__ import annotations

import base64
import json
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

from hybrid.classroom.case import Sizes
from hybrid.classroom.exercise import Exercise, Part
from hybrid.classroom.finding import Finding
from hybrid.classroom.trial import operands, wrong_in
from hybrid.core.problem import record
from hybrid.core.text import counted
from hybrid.emulation.child import new_folder, python_environment, supervised
from hybrid.emulation.confined import LARGEST_FILE, Bounds, confined, installed_with, of_students
from hybrid.errors import HybridError, StartError, UsageError
from hybrid.ranks.launcher import mpirun

_DTYPE = "float64"
_RANKS = (1, 2, 3, 4)
_RIGHT_POINTS, _SHARED_POINTS = 6, 4


@record
class Try:
    """What came of the program on so many ranks."""

    ranks: int
    rows: tuple[str, ...]  # for each shape, up to one that gave none, how many rows each rank has multiplied
    faults: tuple[Finding, ...]
    is_shared: bool  # no rank multiplies more rows than it must, and all are multiplied once
    has_no_end: bool


def tried(exercise: Exercise, path: str, seconds: int, seed: int) -> list[Try]:
    """Try a solution on each number of ranks, up to one on which it does not end: on more ranks it would only take as long again.

    UsageError where the file cannot be read, HybridError where there is no mpirun.
    """
    if not Path(path).is_file():
        raise UsageError(f"{path} cannot be read: it is no file", code="file-unreadable")
    tries: list[Try] = []
    try:
        for ranks in _RANKS:
            tries.append(_on(ranks, exercise.shapes(seed), path, seconds, seed))
            if tries[-1].has_no_end:
                break
        return tries
    except StartError as missing:
        raise HybridError(f"the exercise {exercise.name} needs MPI: {missing}", code="mpi-missing") from None


def told(tries: list[Try]) -> list[str]:
    """The lines about a solution: how many rows each rank has multiplied, and what is wrong."""
    lines = []
    for each in tries:
        lines.append(f"{counted(each.ranks, 'rank')}  {'; '.join(each.rows)}")
        lines += [f"  * {fault.line}" for fault in each.faults]
    if tries[-1].has_no_end and tries[-1].ranks != _RANKS[-1]:
        lines.append("more ranks were not tried")
    return lines


def judged(tries: list[Try]) -> list[Part]:
    """The parts of the judgement of a solution. The file to begin with is right on one rank; what was not tried is not right."""
    several = len(_RANKS) - 1
    right = sum(each.ranks > 1 and each.is_shared and not each.faults for each in tries)
    shared = right == several and not any(each.faults for each in tries)
    return [
        (f"right and shared on {right} of {several} numbers of ranks", _RIGHT_POINTS * right // several, _RIGHT_POINTS),
        ("each rank multiplies its share of the rows, and no more", _SHARED_POINTS * shared, _SHARED_POINTS),
    ]


def _on(ranks: int, shapes: Sequence[Sizes], path: str, seconds: int, seed: int) -> Try:
    """Try a solution on so many ranks. Its processes see a copy of the file, in a folder, which is all that they may write to."""
    with new_folder() as folder:
        results, copy = folder / "results.jsonl", folder / "solution" / Path(path).name
        copy.parent.mkdir()  # since Python looks for modules beside the results
        copy.write_bytes(Path(path).read_bytes())
        launcher, words = mpirun(ranks), [str(copy), results.name, str(seed), *(",".join(map(str, sizes)) for sizes in shapes)]
        # mpi4py's runner ends all ranks when one of them raises.
        command = [*launcher, sys.executable, "-m", "mpi4py", "-m", "hybrid.classroom.rank_exercise", *words]
        with confined(Bounds(seconds, folder, installed_with(launcher[0]), ranks=True)) as confine:
            environment = of_students(python_environment(), folder)
            ended = supervised(command, seconds, confine, stdin=subprocess.DEVNULL, cwd=folder, env=environment)
        is_own = results.is_file() and not results.is_symlink()
        lines = results.read_text(encoding="utf-8", errors="replace").splitlines() if is_own else []
    names, shown, faults, is_shared = ["×".join(map(str, sizes)) for sizes in shapes], [], [], True
    for line, sizes, name in zip(lines, shapes, names, strict=False):
        rows, fault = _outcome(line, sizes, ranks, seed)
        shown.append(f"{name}: rows {', '.join(map(str, rows))}")
        faults += [replace(fault, text=f"{name}: {fault}")] if fault else []
        is_shared &= sum(rows) == sizes[0] and max(rows) <= -(-sizes[0] // ranks)
    if ended.status is None:
        faults.append(
            Finding(f"it had not ended after {seconds} s: does every rank take part in each collective call?", "no-end")
        )
    elif ended.status or len(shown) < len(shapes):
        faults.append(_cause(ended.out + ended.err, "".join(names[len(shown) :][:1]), ended.status, copy.name))
    return Try(ranks, tuple(shown), tuple(faults), is_shared, ended.status is None)


def _outcome(line: str, sizes: Sizes, ranks: int, seed: int) -> tuple[tuple[int, ...], Finding | None]:
    """How many rows each rank has multiplied, and what is wrong with C on rank 0, from what that wrote: all of it is verified,
    since a student's code can write there, too."""
    right = operands(sizes, _DTYPE, seed)[-1]
    try:
        told = json.loads(line)
        rows = tuple(int(each) for each in told["rows"])
        if tuple(told["sizes"]) != sizes or len(rows) != ranks:
            raise ValueError
        shape = told["shape"] if told["shape"] is None else tuple(map(int, told["shape"]))
        content = base64.b64decode(told["c"], validate=True)
        c = np.frombuffer(content, _DTYPE).reshape(right.shape) if shape == right.shape else right
    except (ValueError, TypeError, KeyError):  # binascii.Error is a ValueError
        return (0,) * ranks, Finding("what came from rank 0 is no result of multiply", "no-result")
    if shape is None:
        return rows, Finding("rank 0 returns None", "no-result")
    if shape != right.shape:
        text = f"C is {'×'.join(map(str, shape)) or 'a number'}, and should be {'×'.join(map(str, right.shape))}"
        return rows, Finding(text, "shapes")
    wrong, _ = wrong_in(c, right)
    if not len(wrong):
        return rows, None
    row, column = divmod(int(wrong[0]), right.shape[1])
    return rows, Finding(f"{len(wrong)} of {c.size} elements are wrong, the first is C[{row}][{column}]", "wrong-elements")


def _cause(out: str, unanswered: str, status: int, file: str) -> Finding:
    """Why a program ended: the error that Python's traceback names, and in which line of the file of this name, or else the exit
    status, and the last line that was printed before the launcher's message, which a line of dashes or the like begins.
    `unanswered`: the shape without a result; "" for none."""
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
    """Each rank of `python -m hybrid.classroom.rank_exercise FILE.py RESULTS SEED N,L,M ...` calls the student's
    multiply(comm, a, b, product). Rank 0 writes a JSON line for each shape: C, and how many rows each rank has multiplied."""
    from hybrid.ranks.mpi import all_processes, leave

    comm = all_processes()
    # Only after MPI has started, since the memory that its ranks share is a larger file.
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    multiply = runpy.run_path(file).get("multiply")
    if not callable(multiply):
        raise AttributeError(f"{Path(file).name} has no function multiply(comm, a, b, product)")
    own = comm.Dup()  # so that what the student's collective calls leave over is not taken for ours
    for shape in shapes:
        sizes = tuple(map(int, shape.split(",")))
        outcome = _tried(multiply, comm, own, sizes, int(seed))
        if comm.rank == 0:
            with Path(results).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(outcome) + "\n")
    leave()


def _tried(multiply: Callable[..., Any], comm: Any, own: Any, sizes: tuple[int, ...], seed: int) -> dict[str, Any]:
    given = operands(sizes, _DTYPE, seed)[:2] if comm.rank == 0 else (None, None)
    multiplied: list[int] = []

    def product(rows: Any, right: Any) -> Any:
        multiplied.append(len(rows))
        return np.asarray(rows) @ np.asarray(right)

    c = multiply(comm, *given, product)
    outcome = {"sizes": sizes, "rows": own.gather(sum(multiplied)), "shape": None, "c": ""}
    if comm.rank == 0 and c is not None:
        got = np.asarray(c, _DTYPE)
        outcome["shape"] = got.shape
        if got.shape == (sizes[0], sizes[2]):  # of a C of another shape only the shape is told
            outcome["c"] = base64.b64encode(got.tobytes()).decode()
    return outcome


if __name__ == "__main__":
    main(*sys.argv[1:])
