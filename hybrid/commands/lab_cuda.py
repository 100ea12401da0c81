# SPDX-License-Identifier: MIT
"""python -m hybrid.lab run --device cuda: a kernel is judged and timed on this machine's GPU."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from hybrid.commands.streams import text_stream
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.classroom.examination import Trials
    from hybrid.classroom.student_file import StudentFile


def work(options: argparse.Namespace, trials_of: Callable[[StudentFile], Trials]) -> int:
    """Run the kernel, and say what came of it; returns the exit code. `trials_of`: the trials of a file's kernel."""
    from hybrid.classroom.cuda_run import as_record, ran, told, usual_gpu_shapes
    from hybrid.classroom.program import is_program
    from hybrid.classroom.student_file import read
    from hybrid.reporting.progress import Progress

    if options.gpu or options.html or options.picture or options.ranks or options.arguments:
        others = "--gpu, --html, --picture, --ranks and arguments after --"
        raise UsageError(f"--device cuda times one kernel: {others} are for the emulated GPU", code="option-combination")
    file = read(options.file)
    if not options.kernel and is_program(file):
        raise UsageError(
            f"{options.file} is a whole program, which nvcc compiles for a GPU; --kernel NAME runs one of its kernels there",
            code="option-combination",
        )
    trials = trials_of(file)
    shapes = [tuple(options.sizes)] if options.sizes else usual_gpu_shapes(trials)
    refuse_impossible(trials, shapes[0])
    with Progress(part=lambda: f"run {file.path.name}"):
        run = ran(trials, shapes)
    print("\n".join(told(trials, run)), file=text_stream(options.json))
    if options.json:
        from hybrid.reporting import jsonl

        jsonl.write({"command": "lab run", "seed": trials.seed, **as_record(trials, run)}, options.json)
    return 0 if run.is_right else 1


def refuse_impossible(trials: Trials, sizes: tuple[int, int, int]) -> None:
    """UsageError for a shape that the kernel cannot take."""
    if (possible := trials.meaning.on(sizes)) != sizes:
        raise UsageError(f"{trials.kernel.name} {trials.meaning.limit}: --sizes {' '.join(map(str, possible))}", code="sizes")
