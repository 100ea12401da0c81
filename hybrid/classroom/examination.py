# SPDX-License-Identifier: MIT
"""Finds out whether a student's kernel is right: it is run with each access checked, and in several orders of its threads."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hybrid.classroom.case import Case, Examination, Sizes
from hybrid.classroom.cuda_text import arrays_of_threads, joined
from hybrid.classroom.finding import Finding
from hybrid.classroom.launch import Launch, Meaning
from hybrid.classroom.mistakes import astray
from hybrid.classroom.student_file import StudentFile, StudentKernel
from hybrid.classroom.trial import Program, Task, of_matrices, operands
from hybrid.classroom.unsupported import refuse_host_calls, refuse_unsupported, refuse_without_host
from hybrid.core.problem import record
from hybrid.emulation.child import new_folder
from hybrid.emulation.errors import EmulationError
from hybrid.emulation.kernel import ORDERS
from hybrid.emulation.observed import ELEMENTS, REQUESTS, TRACE, Access, Site
from hybrid.errors import UsageError, one_line

_MOST_TRACED = 1 << 15  # products
_LARGE = 1 << 21  # products, from which on requests to memory are counted in a launch of their own, where they are asked for
_MANY = 1 << 15  # elements of C
_LONG = 261  # more than a byte counts
_LEAST, _MOST = 8, 64  # bounds for the tile of which one shape consists, and another does not


@record
class Trials:
    """A kernel, and how it is run."""

    file: StudentFile
    kernel: StudentKernel
    instance: str  # the kernel's name, with a template's arguments
    meaning: Meaning
    launch: Launch
    seconds: float  # that a run may take
    seed: int

    def examined(self, shapes: Sequence[Sizes]) -> Examination:
        """What is found of the kernel on these shapes. EmulationError if it does not compile."""
        tasks, refused = self._tasks(shapes)
        with new_folder() as folder:
            program = self._program(folder)
            static = sum(size for _, _, size in program.shared_variables()) if shutil.which("readelf") else None
            judged = iter(self._cases(program, tasks))
            cases = self._in_time([refused.get(number) or next(judged) for number in range(len(shapes))])
        return Examination(self.kernel, self.meaning, self.launch, self._traced_astray(cases), static)

    def _tasks(self, shapes: Sequence[Sizes]) -> tuple[list[Task], dict[int, Case]]:
        """The launches; and by their numbers, the shapes on which CUDA would refuse to launch the kernel. UsageError if it would
        on all."""
        tasks, refused = [], {}
        for number, sizes in enumerate(shapes):
            try:
                tasks.append(self.task(sizes))
            except UsageError as error:
                refused[number] = Case(self.meaning.on(sizes), (0, 0), (0, 0), (), faults=(Finding(one_line(error), error.code),))
                if len(refused) == len(shapes):
                    raise
        return tasks, refused

    def _in_time(self, cases: list[Case]) -> list[Case]:
        """The cases without one of very many elements for which there was no time: a slow kernel is no wrong one."""
        wide = [case for case in cases[1:] if case.sizes[0] * case.sizes[2] > _MANY]
        late = [case for case in wide if {each.code for each in case.faults} == {"no-end"}]
        notes = [f"not looked at on {case.sizes[0]}×{case.sizes[1]}×{case.sizes[2]}, for lack of time" for case in late]
        cases[0] = replace(cases[0], notes=(*cases[0].notes, *notes))
        return [case for case in cases if case not in late]

    def _traced_astray(self, cases: list[Case]) -> tuple[Case, ...]:
        """The cases; where none of the wrong ones is explained, the smallest with what its accesses to memory tell."""
        outcomes = {i: case.outcomes[0] for i, case in enumerate(cases) if case.outcomes and not case.faults}
        first = {i: each.first_wrong[0] for i, each in outcomes.items() if each.first_wrong}
        small = [i for i, is_now in first.items() if math.isfinite(is_now) and math.prod(cases[i].sizes) <= _MOST_TRACED]
        if not small or any(each.mistake for each in outcomes.values()):
            return tuple(cases)
        i = min(small, key=lambda each: math.prod(cases[each].sizes))
        a, b, before, _ = operands(cases[i].sizes, self.meaning.dtype, self.seed, self.meaning.scales)
        (alpha, beta), element = self.meaning.scales, outcomes[i].wrong[0]
        is_now = first[i] - (beta * float(before.flat[element]) if beta else 0)
        with suppress(EmulationError):
            found = astray(self.traced(cases[i].sizes)[1], a, b, element, is_now / alpha, self.meaning.names(self.kernel))
            cases[i] = replace(cases[i], hints=(*cases[i].hints, *([found] if found else [])))
        return tuple(cases)

    def traced(self, sizes: Sizes) -> tuple[Case, list[Access]]:
        """A launch on this shape, and all of its accesses to memory in their order. EmulationError if the kernel does not compile
        or is stopped."""
        task = self.task(sizes)
        with new_folder() as folder:
            program = self._program(folder, traced=True)
            launched = program.launched(task, self._limit(), orders=1, watch=TRACE)
            if not launched.outcomes:
                why = launched.looked.findings[0].text if launched.looked.findings else "it crashed"
                raise EmulationError("launch", f"{self.kernel.name} cannot be shown: {why}; lab run says where")
            return Case(sizes, task.grid, task.block, (), shared=task.shared), program.accesses(launched)

    def _program(self, folder: Path, *, traced: bool = False) -> Program:
        text = of_matrices(self.file, self.kernel, self.instance, self.meaning)
        return Program(self.file, self.kernel, text, folder / "program", traced=traced)

    def _limit(self, part: str = "which") -> str:
        """How the time is called that a launch has."""
        return f"{math.ceil(self.seconds if part == 'which' else self.seconds / 2)} s, {part} --stall sets"

    def task(self, sizes: Sizes) -> Task:
        """A launch on this shape, or on the nearest that the kernel can take."""
        sizes = self.meaning.on(sizes)
        grid, block, shared = self.launch.at({**self.file.constants, **dict(zip("nlm", sizes, strict=True))})
        names = self.meaning.names(self.kernel)
        return Task(self.meaning.dtype, sizes, grid, block, shared, self.seed, self.seconds, names, self.meaning.scales)

    def _cases(self, program: Program, tasks: Sequence[Task]) -> Iterator[Case]:
        """What is found of each launch."""
        own = tuple(
            Finding(f"line {line}: each thread has an array {name} of its own: is __shared__ missing before it?", "no-value")
            for name, line in arrays_of_threads(self.file.text, self.kernel.line, self.kernel.body)
        )
        seconds, limit = self.seconds, self._limit()
        sites: tuple[Site, ...] = ()
        for task in tasks:
            is_large = math.prod(task.sizes) > _LARGE
            orders = ORDERS[:1] if is_large and len(tasks) > 1 else ORDERS
            task = replace(task, seconds=seconds)
            launched = program.launched(task, limit, orders=len(orders), watch=ELEMENTS if is_large else ELEMENTS | REQUESTS)
            look = launched.looked
            if look.is_endless:  # else four shapes of a kernel that never ends would take four times as long as one
                seconds, limit = self.seconds / 2, self._limit("half of what")
            faults = look.findings
            if len(launched.outcomes) < len(orders) and not faults:
                faults = (Finding("it crashed: the kernel ended the process", "kernel-crashed"),)
            case = Case(
                *(task.sizes, task.grid, task.block, launched.outcomes, (), (), task.shared),
                *(faults, own or look.hints, look.notes, look.printed),
            )
            if is_large and not faults and len(tasks) == 1:
                launched = program.launched(task, limit, orders=1, watch=REQUESTS)
            if launched.outcomes and not faults:
                sites = program.sites(launched) or (sites if case.wrong else ())  # which lines, another shape tells, too
                case = replace(case, sites=sites, branches=program.branches(launched))
            yield case


def usual_shapes(kernel: StudentKernel, meaning: Meaning, launch: Launch, constants: dict[str, int]) -> list[Sizes]:
    """A shape of whole blocks and tiles, and one that is not; one smaller than a tile; one with a long sum; and one whose
    elements a short cannot number. UsageError if the block is no arithmetic of sizes and constants."""
    small = meaning.on((_LEAST, _LEAST, _LEAST))
    if "blockIdx" not in kernel.body:
        return [small, meaning.on((5, 5, 5) if meaning.square else (5, 7, 6))]
    block = launch.block_at({**constants, **dict(zip("nlm", small, strict=True))})
    tile = min(_MOST, max(_LEAST, *block)) if min(block) > 1 else 4 * _LEAST
    if meaning.square:
        return [meaning.on((size,) * 3) for size in (2 * tile, 2 * tile + 5, 3, _LONG)]
    shapes = [(2 * tile, 3 * tile, tile), (2 * tile + 5, tile + 3, tile + 9), (3, 5, 2), (7, _LONG, 5), (_LONG, 3, 139)]
    return [meaning.on(shape) for shape in shapes]


def chosen(file: StudentFile, wanted: str, *, for_cpu: bool = True) -> tuple[StudentFile, StudentKernel, str]:
    """The kernel of this name, or the only one, and the instance that is launched, with the file. Numbers among a template's
    arguments become constants of the file.

    `wanted`: the kernel's name, with a template's arguments; "" for the only one. UsageError where there is no such kernel, or
    where the file has what is not supported.
    """
    name, names = wanted.partition("<")[0].strip(), [kernel.name for kernel in file.kernels]
    if for_cpu and (not names or (not wanted and len(names) > 1 and file.has_main)):
        refuse_unsupported(joined(file.texts), file.path.name)  # which may be why there is none, or main() is not run
    if not names:
        raise UsageError(f"{file.path} has no kernel: a function that begins with __global__ void", code="lab-kernel")
    if not wanted and len(names) > 1:
        raise UsageError(
            f"{file.path.name} has the kernels {', '.join(names)}: --kernel NAME, or a line // lab: kernel(NAME), chooses one",
            code="lab-kernel",
        )
    if name and name not in names:
        raise UsageError(f"{file.path.name} has no kernel {name}: it has {', '.join(names)}", code="lab-kernel")
    kernel = file.kernels[names.index(name) if name else 0]
    launched = set(re.findall(rf"\b{kernel.name}\s*<([^<>;]*)>\s*<<<", file.text))
    if kernel.template and "<" not in wanted and len(launched) == 1:
        wanted = f"{kernel.name}<{launched.pop()}>"  # as host code launches it
    inner = re.fullmatch(r"[^<]*<(.*)>\s*", wanted)
    arguments = [text.strip() for text in inner[1].split(",")] if inner else []
    if arguments and not kernel.template:
        raise UsageError(f"{kernel.name} is no template: --kernel {kernel.name}", code="lab-kernel")
    if len(arguments) != len(kernel.template):
        raise UsageError(
            f"{kernel.name} is a template of {', '.join(kernel.template)}: --kernel '{kernel.name}<…>' gives them",
            code="lab-kernel",
        )
    if for_cpu:
        refuse_unsupported(file.compiled, file.path.name)
        refuse_host_calls(joined(file.texts), file.path.name)
    refuse_without_host(file, kernel)
    values = dict(zip(kernel.template, arguments, strict=True))
    constants = {key: int(value) for key, value in values.items() if value.isdecimal()}
    return replace(file, constants={**file.constants, **constants}), kernel.instance(arguments), wanted or kernel.name
