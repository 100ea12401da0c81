# SPDX-License-Identifier: MIT
"""The subcommands of python -m hybrid.lab: run and judge kernels and programs, show their steps, list GPUs, grade exercises; and
%%cuda_lab, which gives a notebook cell's code to them."""

from __future__ import annotations

import argparse
import csv
import os
import re
import secrets
import shlex
import signal
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from html import escape
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hybrid.classroom import cuda_run, lab_page, program, report
from hybrid.classroom.cuda_text import joined
from hybrid.classroom.examination import FirstKernel, Trials, chosen, first_kernel
from hybrid.classroom.exercise import EXERCISES, Exercise, Part, judged_on_ranks, named
from hybrid.classroom.gpu_models import model_of, table
from hybrid.classroom.lab_page import picture, small_steps, with_tile
from hybrid.classroom.launch import launch_of, may_be_by_columns, meaning_of, within_comment
from hybrid.classroom.student_file import StudentFile, StudentKernel, parsed, read, refuse_as_nvcc, texts_of
from hybrid.commands.lab import NAME, parse
from hybrid.commands.lectures import example_or_file
from hybrid.commands.streams import text_stream
from hybrid.core.problem import record
from hybrid.core.text import counted
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.emulation import confined
from hybrid.errors import CODES, DeviceUnavailable, HybridError, RankFailed, UsageError, code_of, one_line, with_code
from hybrid.host.files import refuse_same, refuse_unwritable, write_text
from hybrid.host.threads import usable_cores
from hybrid.kernels.catalogue import dotted
from hybrid.reporting import jsonl, steps_page
from hybrid.reporting.progress import Progress
from hybrid.reporting.steps_page import Picture

_STALL, _PROGRAM_STALL = 20, 60  # seconds
_MOST = 512  # rows or columns: a thread of the kernel takes microseconds on a CPU
_LECTURES = ("element", "tiled")
_WIDTH, _SMALL = 110, 4  # of text lines; of the matrices whose steps are shown


def work(options: argparse.Namespace) -> int:
    """Carry out one of the commands; returns the exit code."""
    written = {f"--{name}": getattr(options, name, None) for name in ("html", "picture", "json", "csv")}
    paths = {option: path for option, path in written.items() if path and path != "-"}
    refuse_same(paths, {})
    for path in paths.values():
        refuse_unwritable(path)
    if options.command in ("run", "show", "check", "grade"):
        for sentence in confined.lacking():  # protections that this system lacks against the code that runs
            print(f"{NAME}: {sentence}", file=sys.stderr)
    commands = (_run, _show, _gpus, _exercises, _start, _check, _grade)
    return {each.__name__[1:]: each for each in commands}[options.command](options)


def _write_record(options: argparse.Namespace, record: dict[str, Any]) -> None:
    if options.json:
        jsonl.write({"command": f"lab {options.command}", **record}, options.json)


def _chosen(file: StudentFile, options: argparse.Namespace, *, for_cpu: bool = True) -> tuple[StudentFile, StudentKernel, str]:
    return chosen(file, options.kernel or within_comment(file.launch_comment, "kernel"), for_cpu=for_cpu)


def _flags(options: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(options, name) for name in ("grid", "block", "shared")}


def _trials(given: StudentFile, options: argparse.Namespace, *, for_cpu: bool = True) -> Trials:
    """The trials of this file's kernel with these options. UsageError if the options leave something open."""
    file, kernel, instance = _chosen(given, options, for_cpu=for_cpu)
    meaning = meaning_of(file, kernel, dict(options.let), options.layout == "columns")
    if not any(each.is_number or each.type in file.structs for each in kernel.parameters) and not getattr(options, "sizes", None):
        what = "--sizes n l m tells it" if hasattr(options, "sizes") else "a solution is tried on several: let it take n, l and m"
        raise UsageError(f"{kernel} is told no size, so it is for matrices of one shape: {what}", code="lab-parameters")
    launch = launch_of(file, kernel, meaning, _flags(options))
    seed = options.seed if options.seed is not None else secrets.randbits(32)
    return Trials(file, kernel, instance, meaning, launch, options.stall or _STALL, seed)


def _refuse_impossible(trials: Trials, sizes: tuple[int, ...]) -> None:
    """UsageError for a shape that the kernel cannot take."""
    if (possible := trials.meaning.on(sizes)) != sizes:
        why = "multiplies by a vector" if trials.meaning.vector else "has one size, so its matrices are square"
        raise UsageError(f"{trials.kernel.name} {why}: --sizes {' '.join(map(str, possible))}", code="sizes")


def _run(options: argparse.Namespace) -> int:
    """Run a kernel or a program, and say what is wrong with it."""
    file = read(str(example_or_file(options.file)))
    if options.device == "cuda":
        return _run_on_gpu(file, options)
    given = [tuple(options.sizes)] if options.sizes else []
    if given and max(given[0]) > _MOST:
        what = f"too large for a CPU that runs every thread of the kernel: at most {_MOST}"
        raise UsageError(f"{max(given[0])} is {what}", code="sizes")
    of_a_kernel = ("kernel", "grid", "block", "shared", "let", "sizes", "gpu", "html", "picture")
    if file.has_main and not any(getattr(options, name) for name in of_a_kernel):
        refuse_as_nvcc(joined(file.texts), file.path.name, options.cuda)
        if program.is_program(file):
            return _run_program(file, options)
    if options.arguments or options.ranks or options.devices:
        why = "is not run as a whole program (main() and launches): no --ranks or --devices, nothing after --"
        raise UsageError(f"{file.path} {why}", code="option-combination")
    model = model_of(options.gpu) if options.gpu else None
    trials: Trials | FirstKernel | None = None
    if not (options.sizes or options.let):
        trials = first_kernel(*_chosen(file, options), _flags(options), options.stall or _PROGRAM_STALL, options.seed or 0)
    if trials is None:
        trials = _trials(file, options)
        _refuse_impossible(trials, (given or trials.usual_shapes())[0])
    with Progress(part=lambda: f"run {file.path.name}"):
        examination = trials.examined(given or trials.usual_shapes())
        if isinstance(trials, Trials) and not (examination.is_right or options.layout) and may_be_by_columns(file, trials.kernel):
            options.layout = "columns"
            other = _trials(file, options)
            found = other.examined(given or other.usual_shapes())
            options.layout, trials, examination = ("columns", other, found) if found.is_right else ("rows", trials, examination)
    trials = replace(trials, launch=examination.launch)
    gpu = report.on_gpu(model, examination) if model else None
    stream = text_stream(options.json)
    print("\n".join(report.told(trials.file, examination, gpu)), file=stream)
    if not examination.is_right:
        print(f"--seed {trials.seed} gives the same elements again", file=stream)
    if options.picture and not lab_page.write_picture(options.picture, examination, gpu):
        print(f"{options.picture} is not written: no C is wrong, and the roofline is drawn with --gpu NAME", file=stream)
    if options.html:
        steps: Picture | str = "Steps are shown of products of matrices."
        if isinstance(trials, Trials):
            try:
                steps = small_steps(trials, lambda changed: _trials(changed, options))
            except HybridError as error:
                steps = str(error)
        write_text(options.html, lab_page.page_of(trials.file, examination, gpu, steps))
    _write_record(options, {"seed": trials.seed, **report.as_record(file.path.name, examination, gpu)})
    return 0 if examination.is_right else 1


def _run_program(file: StudentFile, options: argparse.Namespace) -> int:
    stream = text_stream(options.json)
    with Progress(part=lambda: f"run {file.path.name}") as progress:

        def show(line: str) -> None:
            progress.close()  # the program's own output shows its progress
            print(line, end="", file=stream, flush=True)

        account = program.ran(file, options.arguments, options.stall or _PROGRAM_STALL, show, options.ranks, options.devices)
    print("\n".join(program.told(account)), file=stream)
    _write_record(options, program.as_record(account, options.arguments))
    return 0 if account.is_right else 1


def _run_on_gpu(file: StudentFile, options: argparse.Namespace) -> int:
    """Judge and time a kernel on this machine's GPU."""
    if options.gpu or options.html or options.picture or options.ranks or options.devices or options.arguments:
        others = "--gpu, --html, --picture, --ranks, --devices and arguments after --"
        raise UsageError(f"--device cuda times one kernel: {others} are for the emulated GPU", code="option-combination")
    if not options.kernel and program.is_program(file):
        why = "is a whole program, which nvcc compiles for a GPU; --kernel NAME runs one of its kernels there"
        raise UsageError(f"{file.path} {why}", code="option-combination")
    trials = _trials(file, options, for_cpu=False)
    shapes = [tuple(options.sizes)] if options.sizes else cuda_run.usual_gpu_shapes(trials)
    _refuse_impossible(trials, shapes[0])
    with Progress(part=lambda: f"run {file.path.name}"):
        trials, run = cuda_run.ran(trials, shapes)
    print("\n".join(cuda_run.told(trials, run)), file=text_stream(options.json))
    _write_record(options, {"seed": trials.seed, **cuda_run.as_record(trials, run)})
    return 0 if cuda_run.is_right(run) else 1


def _show(options: argparse.Namespace) -> int:
    """Show a kernel's small product step by step: as text, and as a page with buttons or a picture."""
    with Progress(part=lambda: f"trace {options.file}"):
        texts, is_told = texts_of(str(example_or_file(options.file))), options.width or options.sizes or options.tile
        tile = options.tile or (2 if options.file in _LECTURES and is_told else None)
        trials = _trials(parsed(with_tile(texts, tile) if tile else texts), options)
        sizes = tuple(options.sizes) if options.sizes else trials.meaning.on((options.width or _SMALL,) * 3)
        _refuse_impossible(trials, sizes)
        shown = picture(trials, sizes) if is_told else small_steps(trials, lambda changed: _trials(changed, options))
    x, y = options.of
    if (x, y) not in shown.steps:
        raise UsageError(f"--of {x},{y}: the grid has {shown.grid[0]}×{shown.grid[1]} blocks", code="number")
    name = shown.kernel.partition("(")[0]
    print("\n".join(shown.told((x, y))))
    if options.picture:
        steps_page.write_picture(options.picture, f"{name}: {shown.title}", shown, (x, y))
    if options.html:
        write_text(options.html, steps_page.page(name, shown))
    return 0


def _gpus(options: argparse.Namespace) -> int:
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
            print(f"{each.name:<10} {each.points:>2} points  {each.told()[0]}")
        return 0
    exercise = named(options.name)
    title, statement, hints, _ = exercise.told()
    print(f"{title}\n", textwrap.fill(statement, _WIDTH), sep="\n")
    print("".join(f"Besides: {demand.text}.\n" for demand in exercise.demands), end="")
    print("".join(f"Hint {number}: {hint}\n" for number, hint in enumerate(hints[: options.hint], 1)), end="")
    if (hidden := len(hints) - options.hint) > 0:
        print(f"{counted(hidden, 'hint')} more: --hint {options.hint + 1}")
    print(f"\nBegin with: python -m hybrid.lab start {exercise.name} > {exercise.file_name}")
    return 0


def _start(options: argparse.Namespace) -> int:
    print(named(options.name).told()[-1], end="")
    return 0


@record
class _Judgement:
    """The judgement of a file."""

    path: str
    lines: Sequence[str]  # the whole report
    parts: Sequence[Part]  # the points for each part of the exercise
    why: str  # what is wrong, in a line; "" for nothing
    page: str = ""  # of HTML

    @property
    def points(self) -> int | None:
        """None if the lab could not judge the file."""
        return None if self.code in ("lab-unsupported", RankFailed.code) else sum(points for _, points, _ in self.parts)

    @property
    def code(self) -> str:
        """What is wrong, of CODES; "" for nothing."""
        return self.why.rpartition("[")[2].rstrip("]")

    def as_record(self, exercise: Exercise, seed: int) -> dict[str, Any]:
        told = "; ".join([*(f"{text} ({points} of {of})" for text, points, of in self.parts), *filter(None, [self.why])])
        about = {"exercise": exercise.name, "file": self.path, "seed": seed, "points": self.points, "of": exercise.points}
        return {**about, "code": self.code, "why": told}


def _judged(exercise: Exercise, options: argparse.Namespace, path: str) -> _Judgement:
    shapes = exercise.shapes(options.seed, options.cases)
    if exercise.of_ranks:
        return _Judgement(path, *judged_on_ranks(shapes, path, options.stall or _STALL, options.seed))
    file = read(path)
    trials: Trials | FirstKernel | None
    if exercise.computes:
        wanted = (options.stall or _STALL, options.seed, exercise.computes)
        if (trials := first_kernel(*_chosen(file, options), _flags(options), *wanted)) is None:
            raise UsageError(f"{path}: the kernel's parameters are not those of {exercise.name}", code="lab-parameters")
    else:
        trials = replace(_trials(file, options), is_exercise=True)
        # The exercise decides whether B is a vector and what C begins with, and not the kernel.
        meaning = replace(trials.meaning, vector=trials.meaning.vector and exercise.vector, adds=False)
        trials = replace(trials, meaning=meaning)
    examination = trials.examined(shapes)
    parts = exercise.judged(examination.cases, len(shapes))
    page = lab_page.page_of(trials.file, examination, None, "", parts) if options.pages else ""
    return _Judgement(path, list(report.told(trials.file, examination)), parts, report.first_finding(examination), page)


def _check(options: argparse.Namespace) -> int:
    exercise, path, options.pages, options.cases = named(options.name), options.files[0], None, None
    options.seed = secrets.randbits(32) if options.seed is None else options.seed
    with Progress(part=lambda: f"check {path}"):
        judgement = _judged(exercise, options, path)
    stream = text_stream(options.json)
    print("\n".join(judgement.lines), file=stream)
    for text, points, of in judgement.parts:
        print(f"{points} of {of} points: {text}", file=stream)
    if not (is_solved := judgement.points == exercise.points):
        print(f"--seed {options.seed} gives the same shapes and elements again", file=stream)
    print(f"{exercise.name}: {judgement.points} of {exercise.points} points", file=stream)
    _write_record(options, judgement.as_record(exercise, options.seed))
    return 0 if is_solved else 1


def _grade(options: argparse.Namespace) -> int:
    """Judge all files on the same shapes, several at a time. The exit code is 1 where a file could not be judged."""
    exercise, stream = named(options.name), text_stream(options.json)
    options.seed = options.seed or 0  # grades are the same each time
    exercise.shapes(options.seed, options.cases)  # refuses wrong cases
    if options.pages:
        Path(options.pages).mkdir(parents=True, exist_ok=True)
    judgements, rows = list[_Judgement](), list[dict[str, Any]]()
    jobs = min(options.jobs or len(usable_cores()), len(options.files))
    with (
        ProcessPoolExecutor(jobs, get_context("fork"), _begin_job) as pool,
        Progress(part=lambda: f"grade {len(options.files)} files"),
    ):
        try:
            for each in pool.map(partial(_graded, options), options.files):
                judgements.append(each)
                rows.append(each.as_record(exercise, options.seed))
                got = "?" if each.points is None else each.points
                print(f"{got:>3} of {exercise.points}  {each.path}  {rows[-1]['why']}", file=stream, flush=True)
                _write_record(options, rows[-1])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for job in active_children():
                job.terminate()
            raise
    summary = list(_summary(exercise, judgements))
    print("\n".join(summary), file=stream)
    if options.csv:
        with open(options.csv, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    if options.pages:
        links = []
        for each in judgements:
            name = re.sub(r"[^\w.-]+", "-", each.path).strip("-.")[-60:] + ".html"
            page = each.page or lab_page.plain_page(Path(each.path).name, each.parts, each.lines)
            write_text(str(Path(options.pages, name)), page)
            got = "?" if each.points is None else each.points
            links.append((f"{got} of {exercise.points}", f'<a href="{quote(name)}">{escape(each.path)}</a> {escape(each.why)}'))
        index = lab_page.class_page(f"{exercise.name}: {exercise.told()[0]}", links, summary)
        write_text(str(Path(options.pages, "index.html")), index)
    return int(any(each.code == RankFailed.code for each in judgements))


def _begin_job() -> None:
    """In a new process of the pool: exit silently when terminated, since the command prints the line."""
    for each in confined.ASKED:
        signal.signal(each, lambda *_: sys.exit())


def _graded(options: argparse.Namespace, path: str) -> _Judgement:
    """The judgement of a file. An error does not stop the other files: it gives 0 points, or None if the lab cannot judge it."""
    try:
        return _judged(named(options.name), options, path)
    except DeviceUnavailable:
        raise
    except Exception as error:
        code = "file-unreadable" if isinstance(error, (OSError, RecursionError)) else code_of(error)
        why = with_code(one_line(error), code)
        return _Judgement(path, (why,), (), why)


def _summary(exercise: Exercise, judgements: Sequence[_Judgement]) -> Iterator[str]:
    """A class's points, and how often each error occurs."""
    judged = [each.points for each in judgements if each.points is not None]
    full = sum(points == exercise.points for points in judged)
    yield f"{exercise.name}: {counted(len(judged), 'file')} judged of {len(judgements)}, {full} with all {exercise.points} points"
    if judged:
        yield f"  points: {min(judged)} to {max(judged)}, on average {sum(judged) / len(judged):.3g}"
    for part, times in Counter(text for each in judgements for text, points, of in each.parts[1:] if points < of).most_common():
        yield f"  {times:>3} × not: {part}"
    for code, times in Counter(each.code for each in judgements if each.code).most_common():
        yield f"  {times:>3} × {CODES.get(code, code)} [{code}]"


def cuda_lab(line: str, cell: str) -> Any:
    """Run the cell's kernel or program, as `hybrid.lab run` does; the line has its options.

    `%%cuda_lab show` draws the steps, `%%cuda_lab check EXERCISE` grades.
    """
    words = shlex.split(line)
    command = words.pop(0) if words and words[0] in ("run", "show", "check") else "run"
    exercise = [words.pop(0)] if command == "check" and words else []
    with tempfile.TemporaryDirectory(prefix=f"hybrid-lab-{os.getpid()}-") as folder:
        file, page = Path(folder, "cell.cu"), Path(folder, "steps.html")
        file.write_text(cell, encoding="utf-8")
        drawn = ["--html", str(page)] if command == "show" else []
        try:
            work(parse([command, *exercise, str(file), *drawn, *words]))
        except HybridError as error:
            print(f"cuda_lab: {str(error).replace(str(file), 'the cell')}", file=sys.stderr)
        if not page.exists():
            return None
        from IPython.display import HTML

        steps = escape(page.read_text(encoding="utf-8"))  # a frame isolates the page's style and script
        return HTML(f'<iframe srcdoc="{steps}" width="100%" height="900" style="border: 0"></iframe>')
