# SPDX-License-Identifier: MIT
"""The exercises of python -m hybrid.lab: shown, checked and graded."""

from __future__ import annotations

import argparse
import csv
import secrets
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hybrid.classroom.exercise import EXERCISES, Exercise, Part, named
from hybrid.commands.streams import text_stream
from hybrid.core.problem import record
from hybrid.core.text import counted
from hybrid.errors import CODES, DeviceUnavailable, HybridError, one_line, with_code

if TYPE_CHECKING:
    from hybrid.classroom.examination import Trials
    from hybrid.classroom.student_file import StudentFile

_WIDTH = 110
_STALL_OF_RANKS = 20  # seconds
TrialsOf = Callable[["StudentFile", argparse.Namespace], "Trials"]


def work(options: argparse.Namespace, trials_of: TrialsOf) -> int:
    """Carry out `exercises`, `start`, `check` or `grade`; returns the exit code."""
    if options.command == "exercises":
        return _show(options)
    exercise = named(options.name)
    if options.command == "start":
        print(exercise.text(), end="")
        return 0
    if options.seed is None:
        options.seed = 0 if options.command == "grade" else secrets.randbits(32)  # grades are the same each time
    return (_check if options.command == "check" else _grade)(exercise, options, trials_of)


def _show(options: argparse.Namespace) -> int:
    if options.name is None:
        for each in EXERCISES:
            print(f"{each.name:<10} {each.points:>2} points  {each.title}")
        return 0
    exercise = named(options.name)
    print(f"{exercise.title}\n")
    print(textwrap.fill(exercise.statement, _WIDTH))
    for text in [f"Besides: {demand.text}." for demand in exercise.demands]:
        print(text)
    for number, hint in enumerate(exercise.hints[: options.hint], 1):
        print(f"Hint {number}: {hint}")
    hidden = len(exercise.hints) - options.hint
    if hidden > 0:
        print(f"{counted(hidden, 'hint')} more: --hint {options.hint + 1}")
    print(f"\nBegin with: python -m hybrid.lab start {exercise.name} > {exercise.file_name}")
    return 0


@record
class _Judgement:
    """What was found of one file."""

    lines: list[str]  # all that is to be said of it
    parts: list[Part]  # its points, for each part of the exercise
    why: str  # in a line, what is wrong with it

    @property
    def points(self) -> int:
        return sum(points for _, points, _ in self.parts)


def _check(exercise: Exercise, options: argparse.Namespace, trials_of: TrialsOf) -> int:
    judgement = _judged(exercise, options.files[0], options, trials_of)
    stream = text_stream(options.json)
    print("\n".join(judgement.lines), file=stream)
    for text, points, of in judgement.parts:
        print(f"{points} of {of} points: {text}", file=stream)
    is_solved = judgement.points == exercise.points
    if not is_solved:
        print(f"--seed {options.seed} gives the same shapes and elements again", file=stream)
    print(f"{exercise.name}: {judgement.points} of {exercise.points} points", file=stream)
    _keep(options, _record(exercise, options, options.files[0], judgement.points))
    return 0 if is_solved else 1


def _judged(exercise: Exercise, path: str, options: argparse.Namespace, trials_of: TrialsOf) -> _Judgement:
    from hybrid.reporting.progress import Progress

    with Progress(part=lambda: f"{options.command} {path}"):
        return _judged_silently(exercise, path, options, trials_of)


def _judged_silently(exercise: Exercise, path: str, options: argparse.Namespace, trials_of: TrialsOf) -> _Judgement:
    if exercise.of_ranks:
        from hybrid.classroom import rank_exercise

        tries = rank_exercise.tried(exercise, path, options.stall or _STALL_OF_RANKS, options.seed)
        wrong = next((f"{counted(each.ranks, 'rank')}: {each.faults[0].line}" for each in tries if each.faults), "")
        return _Judgement(rank_exercise.told(tries), rank_exercise.judged(tries), wrong)
    from hybrid.classroom.report import first_finding, told
    from hybrid.classroom.student_file import read

    trials = trials_of(read(path), options)
    if not exercise.vector:  # whatever the kernel makes of B
        trials = replace(trials, meaning=replace(trials.meaning, vector=False))
    examination = trials.examined(exercise.shapes(options.seed))
    return _Judgement(list(told(trials.file, examination)), exercise.judged(examination.cases), first_finding(examination))


def _grade(exercise: Exercise, options: argparse.Namespace, trials_of: TrialsOf) -> int:
    """Judge all files on the same shapes. A file that cannot be judged has no points, and the others are judged all the same; one
    that uses what the CPU runtime does not have is not judged."""
    stream, rows = text_stream(options.json), []
    for path in options.files:
        got: int | None = 0
        why, code = "", ""
        try:
            judgement = _judged(exercise, path, options, trials_of)
            got = judgement.points
            parts = [f"{text} ({points} of {of})" for text, points, of in judgement.parts]
            why = "; ".join([*parts, *filter(None, [judgement.why])])
            code = judgement.why.rpartition("[")[2].rstrip("]")
        except DeviceUnavailable:
            raise
        except HybridError as error:
            why, code = with_code(one_line(error), error.code), error.code
            got = None if code == "lab-unsupported" else 0
        except (OSError, RecursionError) as error:  # of a file that is no source at all, say: the class goes on
            why, code = one_line(error), type(error).__name__
        print(f"{'?' if got is None else got:>3} of {exercise.points}  {path}  {why}", file=stream, flush=True)
        rows.append({**_record(exercise, options, path, got), "code": code, "why": why})
        _keep(options, rows[-1])
    print("\n".join(_summary(exercise, rows)), file=stream)
    if options.csv:
        with open(options.csv, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    return 0


def _summary(exercise: Exercise, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """How a class did: the points, and what is wrong how often."""
    judged = [row["points"] for row in rows if row["points"] is not None]
    full = sum(points == exercise.points for points in judged)
    yield f"{exercise.name}: {counted(len(judged), 'file')} judged of {len(rows)}, {full} with all {exercise.points} points"
    if judged:
        yield f"  points: {min(judged)} to {max(judged)}, on average {sum(judged) / len(judged):.3g}"
    for code, times in Counter(row["code"] for row in rows if row["code"]).most_common():
        yield f"  {times:>3} × {CODES.get(code, code)} [{code}]"


def _record(exercise: Exercise, options: argparse.Namespace, path: str, got: int | None) -> dict[str, Any]:
    return {"exercise": exercise.name, "file": path, "seed": options.seed, "points": got, "of": exercise.points}


def _keep(options: argparse.Namespace, record: dict[str, Any]) -> None:
    if options.json:
        from hybrid.reporting import jsonl

        jsonl.write({"command": f"lab {options.command}", **record}, options.json)
