# SPDX-License-Identifier: MIT
"""The exercises of python -m hybrid.lab: shown, checked and graded."""

from __future__ import annotations

import argparse
import secrets
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hybrid.classroom.exercise import EXERCISES, Exercise, Part, named
from hybrid.core.text import counted
from hybrid.errors import DeviceUnavailable, HybridError, one_line

if TYPE_CHECKING:
    from hybrid.classroom.examination import Trials

_WIDTH = 110
_STALL_OF_RANKS = 20  # seconds
TrialsOf = Callable[[str, argparse.Namespace], "Trials"]


def work(options: argparse.Namespace, trials_of: TrialsOf) -> int:
    """One of the commands: the exit code."""
    if options.command == "exercises":
        return _show(options)
    exercise = named(options.name)
    if options.command == "start":
        print(exercise.text(), end="")
        return 0
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


def _check(exercise: Exercise, options: argparse.Namespace, trials_of: TrialsOf) -> int:
    lines, parts = _judged(exercise, options.files[0], options, trials_of)
    got = sum(points for _, points, _ in parts)
    stream = sys.stderr if options.json == "-" else sys.stdout
    print("\n".join(lines), file=stream)
    for text, points, of in parts:
        print(f"{points} of {of} points: {text}", file=stream)
    print(f"{exercise.name}: {got} of {exercise.points} points", file=stream)
    _keep(options, _record(exercise, options.files[0], got))
    return 0 if got == exercise.points else 1


def _judged(exercise: Exercise, path: str, options: argparse.Namespace, trials_of: TrialsOf) -> tuple[list[str], list[Part]]:
    """What is to be said of the file, and its points."""
    if exercise.of_ranks:
        from hybrid.classroom import rank_exercise

        seed = options.seed if options.seed is not None else secrets.randbits(32)
        tries = rank_exercise.tried(exercise, path, options.stall or _STALL_OF_RANKS, seed)
        return rank_exercise.told(tries), rank_exercise.judged(tries)
    from hybrid.classroom.report import told

    trials = trials_of(path, options)
    examination = trials.examined(exercise.shapes)
    return list(told(trials.file, examination)), exercise.judged(examination.cases)


def _grade(exercise: Exercise, options: argparse.Namespace, trials_of: TrialsOf) -> int:
    """A file that cannot be judged has no points, and the others are judged all the same."""
    stream = sys.stderr if options.json == "-" else sys.stdout
    for path in options.files:
        got, why = 0, ""
        try:
            _, parts = _judged(exercise, path, options, trials_of)
            got = sum(points for _, points, _ in parts)
            why = "; ".join(f"{text} ({points} of {of})" for text, points, of in parts)
        except DeviceUnavailable:
            raise
        except HybridError as error:
            why = one_line(error)
        print(f"{got:>3} of {exercise.points}  {path}  {why}", file=stream, flush=True)
        _keep(options, {**_record(exercise, path, got), "why": why})
    return 0


def _record(exercise: Exercise, path: str, got: int) -> dict[str, Any]:
    return {"exercise": exercise.name, "file": path, "points": got, "of": exercise.points}


def _keep(options: argparse.Namespace, record: dict[str, Any]) -> None:
    if options.json:
        from hybrid.reporting import jsonl

        jsonl.write({"command": f"lab {options.command}", **record}, options.json)
