# SPDX-License-Identifier: MIT
"""What the commands of python -m hybrid.lab do: kernels and programs run and judged, steps shown, GPUs told, exercises graded."""

from __future__ import annotations

import argparse
import csv
import secrets
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hybrid.classroom import cuda_run, lab_page, program, rank_exercise, report
from hybrid.classroom.cuda_text import joined
from hybrid.classroom.examination import Trials, chosen, usual_shapes
from hybrid.classroom.exercise import EXERCISES, Exercise, Part, named
from hybrid.classroom.first_kernel import FirstKernel, first_kernel
from hybrid.classroom.gpu_models import detail, model_of, table
from hybrid.classroom.launch import launch_of, meaning_of, within_comment
from hybrid.classroom.on_gpu import on_gpu
from hybrid.classroom.steps import picture, small_steps, with_tile
from hybrid.classroom.student_file import StudentFile, StudentKernel, parsed, read, texts_of
from hybrid.classroom.unsupported import refuse_as_nvcc
from hybrid.commands.lab import NAME
from hybrid.commands.lectures import example_or_file
from hybrid.commands.streams import text_stream
from hybrid.core.problem import record
from hybrid.core.text import counted
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.emulation import confined
from hybrid.errors import CODES, DeviceUnavailable, HybridError, UsageError, one_line, with_code
from hybrid.host.files import refuse_same, refuse_unwritable
from hybrid.kernels.catalogue import dotted
from hybrid.reporting import html_page, jsonl, steps_page, svg
from hybrid.reporting.progress import Progress

_STALL, _PROGRAM_STALL = 20, 60  # seconds
_MOST = 512  # of a size: a thread of the kernel takes microseconds on a CPU
_LECTURES = ("element", "tiled")
_WIDTH = 110  # of lines of text


def work(options: argparse.Namespace) -> int:
    """Carry out one of the commands; returns the exit code."""
    written = {f"--{name}": getattr(options, name, None) for name in ("html", "picture", "json", "csv")}
    paths = {option: path for option, path in written.items() if path and path != "-"}
    refuse_same(paths, {})
    for path in paths.values():
        refuse_unwritable(path)
    if getattr(options, "picture", None):
        svg.refuse(options.picture)
    if options.command in ("run", "show", "check", "grade"):
        for sentence in confined.lacking():  # what the code that is going to run cannot be kept from
            print(f"{NAME}: {sentence}", file=sys.stderr)
    commands = (_run, _show, _gpus, _exercises, _start, _check, _grade)
    return {each.__name__[1:]: each for each in commands}[options.command](options)


def _keep(options: argparse.Namespace, record: dict[str, Any]) -> None:
    if options.json:
        jsonl.write({"command": f"lab {options.command}", **record}, options.json)


def _chosen(file: StudentFile, options: argparse.Namespace, *, for_cpu: bool = True) -> tuple[StudentFile, StudentKernel, str]:
    return chosen(file, options.kernel or within_comment(file.launch_comment, "kernel"), for_cpu=for_cpu)


def _flags(options: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(options, name) for name in ("grid", "block", "shared")}


def _trials(given: StudentFile, options: argparse.Namespace, *, for_cpu: bool = True) -> Trials:
    """The trials of a kernel of this file, as the options say. UsageError where the options leave something open."""
    file, kernel, instance = _chosen(given, options, for_cpu=for_cpu)
    meaning = meaning_of(file, kernel, dict(options.let))
    if not any(each.is_number or each.type in file.structs for each in kernel.parameters) and not getattr(options, "sizes", None):
        what = "--sizes n l m tells it" if hasattr(options, "sizes") else "a solution is tried on several: let it take n, l and m"
        raise UsageError(f"{kernel} is told no size, so it is for matrices of one shape: {what}", code="lab-parameters")
    launch = launch_of(file, kernel, meaning, _flags(options))
    seed = options.seed if options.seed is not None else secrets.randbits(32)
    return Trials(file, kernel, instance, meaning, launch, options.stall or _STALL, seed)


def _refuse_impossible(trials: Trials, sizes: tuple[int, int, int]) -> None:
    """UsageError for a shape that the kernel cannot take."""
    if (possible := trials.meaning.on(sizes)) != sizes:
        raise UsageError(f"{trials.kernel.name} {trials.meaning.limit}: --sizes {' '.join(map(str, possible))}", code="sizes")


def _run(options: argparse.Namespace) -> int:
    """Run a kernel or a program, and say what is wrong with it."""
    file = read(str(example_or_file(options.file)))
    if options.device == "cuda":
        return _run_on_gpu(file, options)
    if options.sizes and max(options.sizes) > _MOST:
        raise UsageError(
            f"{max(options.sizes)} is too large for a CPU that runs every thread of the kernel: at most {_MOST}", code="sizes"
        )
    of_a_kernel = ("kernel", "grid", "block", "shared", "let", "sizes", "gpu", "html", "picture")
    if file.has_main and not any(getattr(options, name) for name in of_a_kernel):
        refuse_as_nvcc(joined(file.texts), file.path.name, options.cuda)
        if program.is_program(file):
            return _run_program(file, options)
    if options.arguments or options.ranks or options.devices:
        raise UsageError(
            f"{file.path} is not run as a whole program (main() and launches): no --ranks or --devices, nothing after --",
            code="option-combination",
        )
    if not (options.sizes or options.let or options.html or options.picture or options.gpu):
        chosen_file, kernel, instance = _chosen(file, options)
        if first := first_kernel(chosen_file, kernel, instance, _flags(options)):
            return _run_first(first, options)
    model = model_of(options.gpu) if options.gpu else None
    trials = _trials(file, options)
    kernel, meaning = trials.kernel, trials.meaning
    shapes = [tuple(options.sizes)] if options.sizes else usual_shapes(kernel, meaning, trials.launch, trials.file.constants)
    _refuse_impossible(trials, shapes[0])
    with Progress(part=lambda: f"run {file.path.name}"):
        examination = trials.examined(shapes)
    gpu = on_gpu(model, trials, examination) if model else None
    stream = text_stream(options.json)
    print("\n".join(report.told(trials.file, examination, gpu)), file=stream)
    if not examination.is_right:
        print(f"--seed {trials.seed} gives the same elements again", file=stream)
    if options.picture and not lab_page.write_picture(options.picture, examination, gpu):
        print(f"{options.picture} is not written: no C is wrong, and the roofline is drawn with --gpu NAME", file=stream)
    if options.html:
        steps = small_steps(trials, lambda changed: _trials(changed, options))
        html_page.write(options.html, lab_page.page_of(trials.file, examination, gpu, steps))
    _keep(options, {"seed": trials.seed, **report.as_record(file.path.name, examination, gpu)})
    return 0 if examination.is_right else 1


def _run_first(first: FirstKernel, options: argparse.Namespace) -> int:
    with Progress(part=lambda: f"run {first.file.path.name}"):
        cases = first.judged(options.stall or _PROGRAM_STALL)
    print("\n".join(report.told_of_first(first, cases)), file=text_stream(options.json))
    is_right = not any(found for _, found in cases)
    records = [{"sizes": sizes, "findings": [each.as_record() for each in found]} for sizes, found in cases]
    about = {"file": first.file.path.name, "kernel": first.kernel.name, "computes": first.promised if first.is_plain else ""}
    _keep(options, {**about, "right": is_right, "cases": records})
    return 0 if is_right else 1


def _run_program(file: StudentFile, options: argparse.Namespace) -> int:
    stream = text_stream(options.json)
    with Progress(part=lambda: f"run {file.path.name}") as progress:

        def show(line: str) -> None:
            progress.close()  # what the program prints tells how far it is
            print(line, end="", file=stream, flush=True)

        account = program.ran(file, options.arguments, options.stall or _PROGRAM_STALL, show, options.ranks, options.devices)
    print("\n".join(program.told(account)), file=stream)
    _keep(options, program.as_record(account, options.arguments))
    return 0 if account.is_right else 1


def _run_on_gpu(file: StudentFile, options: argparse.Namespace) -> int:
    """Judge and time a kernel on this machine's GPU."""
    if options.gpu or options.html or options.picture or options.ranks or options.devices or options.arguments:
        others = "--gpu, --html, --picture, --ranks, --devices and arguments after --"
        raise UsageError(f"--device cuda times one kernel: {others} are for the emulated GPU", code="option-combination")
    if not options.kernel and program.is_program(file):
        raise UsageError(
            f"{file.path} is a whole program, which nvcc compiles for a GPU; --kernel NAME runs one of its kernels there",
            code="option-combination",
        )
    trials = _trials(file, options, for_cpu=False)
    shapes = [tuple(options.sizes)] if options.sizes else cuda_run.usual_gpu_shapes(trials)
    _refuse_impossible(trials, shapes[0])
    with Progress(part=lambda: f"run {file.path.name}"):
        run = cuda_run.ran(trials, shapes)
    print("\n".join(cuda_run.told(trials, run)), file=text_stream(options.json))
    _keep(options, {"seed": trials.seed, **cuda_run.as_record(trials, run)})
    return 0 if run.is_right else 1


def _show(options: argparse.Namespace) -> int:
    """A kernel's small product, step by step, in words, and as a page with buttons or a picture."""
    with Progress(part=lambda: f"trace {options.file}"):
        texts = texts_of(str(example_or_file(options.file)))
        tile = options.tile or (2 if options.file in _LECTURES else None)
        trials = _trials(parsed(with_tile(texts, tile) if tile else texts), options)
        sizes = tuple(options.sizes) if options.sizes else trials.meaning.on((options.width,) * 3)
        _refuse_impossible(trials, sizes)
        shown = picture(trials, sizes)
    x, y = options.of
    if (x, y) not in shown.steps:
        raise UsageError(f"--of {x},{y}: the grid has {shown.grid[0]}×{shown.grid[1]} blocks", code="number")
    name = shown.kernel.partition("(")[0]
    print("\n".join(shown.told((x, y))))
    if options.picture:
        steps_page.write_picture(options.picture, f"{name}: {shown.title}", shown, (x, y))
    if options.html:
        html_page.write(options.html, steps_page.page(name, shown))
    return 0


def _gpus(options: argparse.Namespace) -> int:
    """What GPUs have, and which of them are here."""
    if options.gpu is not None:
        print(*detail(model_of(options.gpu)), sep="\n")
        return 0
    print(*table(), sep="\n")
    try:
        for gpu in usable_gpus():
            print(f"here: {gpu.name}, compute capability {dotted(gpu.capability)}")
    except DeviceUnavailable as why:
        print(f"here: no GPU ({why})")
    return 0


def _exercises(options: argparse.Namespace) -> int:
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


def _start(options: argparse.Namespace) -> int:
    print(named(options.name).text(), end="")
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


def _judged(exercise: Exercise, path: str, options: argparse.Namespace) -> _Judgement:
    with Progress(part=lambda: f"{options.command} {path}"):
        if exercise.of_ranks:
            tries = rank_exercise.tried(exercise, path, options.stall or _STALL, options.seed)
            wrong = next((f"{counted(each.ranks, 'rank')}: {each.faults[0].line}" for each in tries if each.faults), "")
            return _Judgement(rank_exercise.told(tries), rank_exercise.judged(tries), wrong)
        trials = _trials(read(path), options)
        if not exercise.vector:  # whatever the kernel makes of B
            trials = replace(trials, meaning=replace(trials.meaning, vector=False))
        examination = trials.examined(exercise.shapes(options.seed))
        lines, why = list(report.told(trials.file, examination)), report.first_finding(examination)
        return _Judgement(lines, exercise.judged(examination.cases), why)


def _check(options: argparse.Namespace) -> int:
    exercise, path = named(options.name), options.files[0]
    options.seed = secrets.randbits(32) if options.seed is None else options.seed
    judgement = _judged(exercise, path, options)
    stream = text_stream(options.json)
    print("\n".join(judgement.lines), file=stream)
    for text, points, of in judgement.parts:
        print(f"{points} of {of} points: {text}", file=stream)
    is_solved = judgement.points == exercise.points
    if not is_solved:
        print(f"--seed {options.seed} gives the same shapes and elements again", file=stream)
    print(f"{exercise.name}: {judgement.points} of {exercise.points} points", file=stream)
    _keep(options, _row(exercise, options, path, judgement.points))
    return 0 if is_solved else 1


def _grade(options: argparse.Namespace) -> int:
    """Judge all files on the same shapes. A file that cannot be judged has no points, and the others are judged all the same; one
    that uses what the CPU runtime does not have is not judged."""
    exercise, stream, rows = named(options.name), text_stream(options.json), []
    options.seed = options.seed or 0  # grades are the same each time
    for path in options.files:
        got: int | None = 0
        why, code = "", ""
        try:
            judgement = _judged(exercise, path, options)
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
        rows.append({**_row(exercise, options, path, got), "code": code, "why": why})
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


def _row(exercise: Exercise, options: argparse.Namespace, path: str, got: int | None) -> dict[str, Any]:
    return {"exercise": exercise.name, "file": path, "seed": options.seed, "points": got, "of": exercise.points}
