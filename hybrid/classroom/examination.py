# SPDX-License-Identifier: MIT
"""Finds out whether a student's kernel is right: it is run with each access checked, and in several orders of its threads."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybrid.classroom import kernel_program
from hybrid.classroom.c_text import arrays_of_threads
from hybrid.classroom.case import Case, Examination, Sizes
from hybrid.classroom.compiled_text import joined
from hybrid.classroom.elements import operands
from hybrid.classroom.finding import Finding
from hybrid.classroom.launch import Launch
from hybrid.classroom.launched import Run, launched
from hybrid.classroom.meaning import Meaning
from hybrid.classroom.mistakes import astray
from hybrid.classroom.side_by_side import SideBySide
from hybrid.classroom.student_file import StudentFile
from hybrid.classroom.student_kernel import StudentKernel
from hybrid.classroom.telling import Looked
from hybrid.classroom.trial import Outcome, Task
from hybrid.classroom.unsupported import refuse_host_calls, refuse_unsupported, refuse_without_host
from hybrid.classroom.wrapper import ENTRY, wrapped
from hybrid.core.problem import record
from hybrid.emulation.branches import Branch
from hybrid.emulation.build import build
from hybrid.emulation.cache import cache_folder
from hybrid.emulation.child import Ended, new_folder
from hybrid.emulation.errors import CODES_OF_KINDS, EmulationError
from hybrid.emulation.kernel import ORDERS
from hybrid.emulation.requests import Site, shared_variables
from hybrid.emulation.trace import Access
from hybrid.errors import UsageError

_CHECKS = ("loads", "requests")
_MOST_TRACED = 1 << 15  # products
_MANY, _LONG_SUM = 1 << 15, 256  # elements of C, or products of each, from which on one order of the threads is enough
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
        # Where a compiler could not be ended, its folder may not be empty yet.
        with new_folder() as folder:
            source, threads = self._source(folder), SideBySide(str(folder), str(cache_folder()))
            try:
                looked = threads.begin(self._looked_at, folder / "program", tasks)
                built = {checks: threads.begin(self._built, source, checks) for checks in _CHECKS}
                libraries = {checks: library.result() for checks, library in built.items()}
                cases_of_program = looked.result()
            except BaseException:  # an interrupt, say: the threads wait for compilers and for kernels that may not end
                threads.end()
                raise
            judged = iter(self._cases(libraries, tasks, cases_of_program))
        cases = self._traced_astray(self._in_time([refused.get(number) or next(judged) for number in range(len(shapes))]))
        variables = shared_variables(Path(libraries["requests"]))
        static = None if variables is None else sum(size for _, _, size in variables)
        return Examination(self.kernel, self.meaning, self.launch, cases, static)

    def _tasks(self, shapes: Sequence[Sizes]) -> tuple[list[Task], dict[int, Case]]:
        """The launches; and by their numbers, the shapes on which CUDA would refuse to launch the kernel. UsageError if it would
        on all."""
        tasks, refused = [], {}
        for number, sizes in enumerate(shapes):
            try:
                tasks.append(self.task(sizes))
            except UsageError as error:
                refused[number] = Case(self.meaning.on(sizes), (0, 0), (0, 0), {}, faults=(Finding.of(error),))
                if len(refused) == len(shapes):
                    raise
        return tasks, refused

    def _in_time(self, cases: list[Case]) -> list[Case]:
        """The cases without one of very many elements for which there was no time: a slow kernel is no wrong one."""
        late = [case for case in cases[1:] if _is_wide(case.sizes) and {each.code for each in case.faults} == {"no-end"}]
        notes = [f"not looked at on {case.sizes[0]}×{case.sizes[1]}×{case.sizes[2]}, for lack of time" for case in late]
        cases[0] = replace(cases[0], notes=(*cases[0].notes, *notes))
        return [case for case in cases if case not in late]

    def _traced_astray(self, cases: list[Case]) -> tuple[Case, ...]:
        """The cases; where none of the wrong ones is explained, the smallest with what its accesses to memory tell."""
        outcomes = {i: case.outcomes[ORDERS[0]] for i, case in enumerate(cases) if case.outcomes and not case.faults}
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
        with new_folder() as folder:
            libraries = {"trace": self._built(self._source(folder), "trace")}
            task = self.task(sizes)
            ((ended, found),) = self._launched(libraries, [task], "trace", ORDERS[:1])
        outcomes = [Outcome(**_tuples(each)) for each in found]
        if not outcomes or outcomes[0].stopped:
            stopped = next(_stopped({}, ended, self.seconds), _crash(ended))
            why = outcomes[0].why if outcomes else stopped.text
            raise EmulationError("launch", f"{self.kernel.name} cannot be shown: {why}; lab run says where")
        accesses = [Access(**{**each, "block": tuple(each["block"])}) for each in found[0]["accesses"]]
        return Case(sizes, task.grid, task.block, {}, shared=task.shared), accesses

    def _source(self, folder: Path) -> Path:
        """A file in the folder with the text that is compiled."""
        source = folder / self.file.path.name
        source.write_text(wrapped(self.file, self.kernel, self.instance, self.meaning), encoding="utf-8")
        return source

    def _built(self, source: Path, checks: str) -> str:
        """The library that is compiled for these checks."""
        return str(build(source, [ENTRY], checks=checks, poison_locals=True, reads=()))

    def task(self, sizes: Sizes) -> Task:
        """A launch on this shape, or on the nearest that the kernel can take."""
        sizes = self.meaning.on(sizes)
        grid, block, shared = self.launch.at({**self.file.constants, **dict(zip("nlm", sizes, strict=True))})
        names = self.meaning.names(self.kernel)
        return Task(
            *("", "", self.meaning.dtype, sizes, grid, block, shared, ORDERS[0], self.seed, self.seconds),
            names=names,
            file_name=self.file.path.name,
            scales=self.meaning.scales,
        )

    def _looked_at(self, folder: Path, tasks: Sequence[Task]) -> list[Looked]:
        """What the CPU runtime finds in each launch, when a whole program makes it."""
        folder.mkdir()
        looked = kernel_program.looks(self.file, self.kernel, self.instance, self.meaning, tasks, folder)
        own = tuple(
            Finding(f"line {line}: each thread has an array {name} of its own: is __shared__ missing before it?", "no-value")
            for name, line in arrays_of_threads(self.file.text, self.kernel.line, self.kernel.body)
        )
        return [replace(each, hints=own or each.hints) for each in looked]

    def _cases(self, libraries: dict[str, str], tasks: Sequence[Task], looked: Sequence[Looked]) -> tuple[Case, ...]:
        """What is found of each launch. Each further run is made only where the runs before leave its question open."""
        cases = [
            Case(task.sizes, task.grid, task.block, {}, (), (), task.shared, look.findings, look.hints, look.notes, look.printed)
            for task, look in zip(tasks, looked, strict=True)
        ]
        ending = [number for number, look in enumerate(looked) if not look.is_endless]
        large = {i for i, case in enumerate(cases) if len(cases) > 1 and _is_large(case.sizes)}
        for orders, numbers in ((ORDERS, [i for i in ending if i not in large]), (ORDERS[:1], [i for i in ending if i in large])):
            runs = self._launched(libraries, [tasks[number] for number in numbers], "loads", orders)
            for number, run in zip(numbers, runs, strict=True):
                cases[number] = self._with_outcomes(cases[number], *run, orders)
        without_faults = [number for number, case in enumerate(cases) if not case.faults and (number not in large or case.wrong)]
        runs = self._launched(libraries, [tasks[number] for number in without_faults], "requests", ORDERS[:1])
        for number, (_, found) in zip(without_faults, runs, strict=True):
            sites = tuple(Site(**each) for outcome in found for each in outcome["sites"])
            branches = tuple(Branch(**each) for outcome in found for each in outcome["branches"])
            cases[number] = replace(cases[number], sites=sites, branches=branches)
        return tuple(cases)

    def _with_outcomes(self, case: Case, ended: Ended, found: Sequence[dict[str, Any]], orders: Sequence[str]) -> Case:
        """The case with the outcomes of a run, and with a fault where a launch was stopped or crashed and no fault is known."""
        outcomes = dict(zip(orders, (Outcome(**_tuples(each)) for each in found), strict=False))
        faults = case.faults or tuple(_stopped(outcomes, ended, self.seconds))
        if len(outcomes) < len(orders) and not faults:
            faults = (_crash(ended),)
        return replace(case, outcomes=outcomes, faults=faults)

    def _launched(self, libraries: dict[str, str], tasks: Sequence[Task], checks: str, orders: Sequence[str]) -> list[Run]:
        """Runs of each task, in all of these orders of the threads."""
        named = [replace(task, shared_object=libraries[checks], checks=checks) for task in tasks]
        return launched([[replace(task, order=order) for order in orders] for task in named], checks, self.seconds)


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


def _is_wide(sizes: Sizes) -> bool:
    return sizes[0] * sizes[2] > _MANY


def _is_large(sizes: Sizes) -> bool:
    return _is_wide(sizes) or sizes[1] > _LONG_SUM


def _tuples(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome with tuples again in place of JSON's lists."""

    def restored(value: Any) -> Any:
        return tuple(map(restored, value)) if isinstance(value, list) else value

    return {key: restored(value) for key, value in outcome.items()}


def _stopped(outcomes: dict[str, Outcome], ended: Ended, seconds: float) -> Iterator[Finding]:
    """Why a launch was stopped, if one was."""
    for outcome in outcomes.values():
        if outcome.stopped:
            yield Finding(outcome.why, CODES_OF_KINDS.get(outcome.stopped, "no-result"))
            return
    if ended.status is None:
        why = "a loop that never ends, or very much work for a CPU"
        yield Finding(f"it had not ended after {seconds:g} s, which --stall sets: {why}", "no-end")


def _crash(ended: Ended) -> Finding:
    return Finding(f"it crashed: {_cause(ended)}", "kernel-crashed")


def _cause(ended: Ended) -> str:
    """The cause of a crash: the signal, or the last line of standard error."""
    if ended.status == 0:
        return "the kernel ended the process"
    if ended.status is not None and ended.status < 0:
        return f"{signal.Signals(-ended.status).name} ended it"
    lines = [line for line in ended.err.strip().splitlines() if not re.match(r"\s*(=|#|at )", line)]
    return lines[-1].strip() if lines else f"exit code {ended.status}"


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
