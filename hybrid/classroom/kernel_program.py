# SPDX-License-Identifier: MIT
"""Launches a student's kernel by a generated program, in which each access to memory is checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from hybrid.classroom.meaning import Meaning
from hybrid.classroom.student_file import StudentFile
from hybrid.classroom.student_kernel import StudentKernel
from hybrid.classroom.telling import Looked, looked
from hybrid.classroom.trial import Task
from hybrid.classroom.wrapper import as_program
from hybrid.emulation import whole_program


def looks(
    file: StudentFile, kernel: StudentKernel, instance: str, meaning: Meaning, tasks: Sequence[Task], folder: Path
) -> Iterator[Looked]:
    """What was found in each launch. The kernel may write to `folder` only. EmulationError if it does not compile."""
    source = folder / file.path.name
    program, warnings = whole_program.built(source, as_program(file, kernel, instance, meaning), {})
    sources = {path.name: text.split("\n") for path, text in file.texts.items()}
    some_were_endless = False
    for task in tasks:
        n, l, m = task.sizes
        numbers = (*task.sizes, *(*task.grid, 1)[:3], *(*task.block, 1)[:3], task.shared)
        printed: list[str] = []
        # Else four shapes of a kernel that never ends would take four times as long as one.
        seconds = math.ceil(task.seconds / 2 if some_were_endless else task.seconds)
        limit = f"{seconds} s, {'half of what' if some_were_endless else 'which'} --stall sets"
        (ran,) = whole_program.run(program, source, list(map(str, numbers)), seconds, printed.append, current=folder)
        matrices = [(name, *shape) for name, shape in zip(task.names, ((n, l), (l, m), (n, m)), strict=True)]
        found = looked(ran, program, warnings, sources, limit, matrices, "".join(printed))
        some_were_endless |= found.is_endless
        yield found
