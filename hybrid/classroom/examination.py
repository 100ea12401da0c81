# SPDX-License-Identifier: MIT
"""Runs a student's kernel on several shapes, with each memory access checked: `Trials` for a matrix product, in several orders of
the threads; `FirstKernel` for a vector addition, reduction, stencil and the like."""

from __future__ import annotations

import math
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.classroom.cuda_text import indices_of, joined, loops_in, value_of
from hybrid.classroom.launch import (
    EVERY_SIZE,
    Launch,
    Meaning,
    is_by_rows,
    is_updated,
    is_written,
    launch_of,
    multiples_of,
    said_transposed,
    strict_launches,
)
from hybrid.classroom.mistakes import Finding
from hybrid.classroom.repairs import MOST, Repair, repairs_of, uses_narrow_integers
from hybrid.classroom.report import Examination, without_repetition
from hybrid.classroom.student_file import StudentFile, StudentKernel, refuse_host_calls, refuse_unsupported, refuse_without_host
from hybrid.classroom.trial import ELEMENT_TYPES, Case, Outcome, Program, Sizes, Task, program_text
from hybrid.core.problem import record
from hybrid.emulation.child import new_folder
from hybrid.emulation.errors import EmulationError
from hybrid.emulation.kernel import ORDERS
from hybrid.emulation.observed import ELEMENTS, REQUESTS, TRACE, VERSIONS, Access, Site
from hybrid.errors import UsageError, one_line

_LARGE = 1 << 21  # multiplications; in larger launches requests to memory are counted apart, and only for a single shape
_MANY = 1 << 15  # elements of C
_LONG = 261  # overflows a byte
_BLOCKS = 16  # of a launch that takes too long: if one of them does so, too, it is endless
_BRIEF = 4  # seconds for a changed kernel
_EFFECTS = ("out-of-bounds", "no-value", "uninitialised", "wrong-elements", "never-written")
_LEAST, _MOST = 8, 64  # bounds of the tile that shapes are made for


@record
class _Tried(ABC):
    """A kernel, and how it is run."""

    file: StudentFile
    kernel: StudentKernel
    instance: str  # the kernel's name with template arguments
    meaning: Meaning | None  # None for a kernel that multiplies no matrices
    launch: Launch
    seconds: float  # limit of a run
    seed: int

    def examined(self, shapes: Sequence[Sizes]) -> Examination:
        """Run the kernel on these shapes. EmulationError if it does not compile, UsageError if it cannot be launched on any."""
        is_usual = shapes == self.usual_shapes()
        with new_folder() as folder:
            program, used = self._program(folder), self
            static = sum(size for _, _, size in program.shared_variables()) if shutil.which("readelf") else None
            cases = self._cases(program, shapes)
            for launch in self.launch.others if _may_be_launched_wrongly(cases) else ():
                other = replace(self, launch=launch)
                with suppress(UsageError):  # it is impossible for these sizes
                    own = other.usual_shapes() if is_usual else shapes
                    if all(other._is_right(program, sizes) for sizes in own[1::-1]):
                        used = replace(other, launch=launch.instead_of(self.launch))
                        cases = used._cases(program, own)
                        break
            used, cases, computes = used._explained(program, cases, shapes, folder)
        stated = multiples_of(self.file, self.kernel) if is_usual else {}
        return Examination(self.kernel, self.meaning, used.launch, tuple(cases), static, computes, stated)

    @abstractmethod
    def usual_shapes(self) -> list[Sizes]:
        """The shapes to run on, if the user names none."""

    @abstractmethod
    def _cases(self, program: Program, shapes: Sequence[Sizes]) -> list[Case]:
        """The runs on these shapes."""

    @abstractmethod
    def _is_right(self, program: Program, sizes: Sizes, version: int = 0) -> bool:
        """Whether the kernel, or a changed version, is right on this shape with its threads in one order."""

    @abstractmethod
    def _explained(
        self, program: Program, cases: list[Case], shapes: Sequence[Sizes], folder: Path
    ) -> tuple[_Tried, list[Case], str]:
        """The kernel with its final launch; the cases, with causes; and what the kernel computes, as in `Examination`."""

    def _program(self, folder: Path, versions: Mapping[int, str] | None = None, *, traced: bool = False) -> Program:
        text = program_text(self.file, self.kernel, self.instance, self.meaning, versions)
        place = folder / (f"repairs_{len(versions)}" if versions else "program")
        return Program(self.file, self.kernel, text, place, traced=traced)

    def _repaired(self, cases: list[Case], folder: Path, result: str = "C") -> list[Case]:
        """The cases; if no wrong one is explained, or narrow integers may have overflowed, the wrong ones are told which small
        change makes them right; if some have no accesses out of bounds and the like, only those."""
        wrong = sorted((case for case in cases if not case.is_right and any(case.grid)), key=lambda case: math.prod(case.sizes))
        is_explained = any(_is_explained(case) for case in wrong)
        wrong = [case for case in wrong if not case.faults] or wrong
        tried = [case.sizes for case in wrong if math.prod(case.sizes) <= _LARGE][:3]
        found = repairs_of(self.file, self.kernel, ELEMENT_TYPES[self.meaning.dtype] if self.meaning else "", result)
        repairs = dict(enumerate([each for each in found if each.is_of_narrow or not is_explained][:MOST] if tried else [], 1))
        while repairs:
            try:
                program = self._program(folder, {number: each.text for number, each in repairs.items()})
                break
            except EmulationError as error:  # without the version that does not compile
                bad = re.search(r"version (\d+):", str(error))
                if bad is None or repairs.pop(int(bad[1]), None) is None:
                    return cases
        mending: list[Repair] = []
        for number, each in repairs.items():
            if (not mending or each.resembles(mending[0])) and all(self._is_right(program, sizes, number) for sizes in tried):
                mending.append(each)
        if not mending:
            return cases
        text = "; or in ".join(each.what for each in mending[:2] if each is mending[0] or each.line != mending[0].line)
        cause = Finding(text, "wrong-terms", ((self.file.path.name, mending[0].line),))
        return [replace(each, faults=(cause, *each.faults)) if each in wrong else each for each in cases]


@record
class Trials(_Tried):
    """A kernel that multiplies matrices."""

    meaning: Meaning
    is_exercise: bool = False  # whole matrices are to be multiplied

    def _explained(
        self, program: Program, cases: list[Case], shapes: Sequence[Sizes], folder: Path
    ) -> tuple[_Tried, list[Case], str]:
        trials = self
        if self.launch.is_guess and all(case.is_right for case in cases):
            for other in (replace(self, launch=launch) for launch in strict_launches(self.kernel, self.launch)):
                also = other._cases(program, shapes[:2][-1:])
                if not all(case.is_right for case in also):
                    trials, cases = other, [*cases, *also]
                    break
        computes = ""
        if not self.is_exercise:
            computes = _triangle(cases, self.meaning.names(self.kernel)) or self._transposed(cases)
        if not computes:
            return trials, trials._repaired(_without_refuted(cases), folder), ""
        none: dict[str, Any] = {"wrong": (), "first_wrong": None, "never": (), "mistake": None}
        right = [replace(case, outcomes=tuple(replace(each, **none) for each in case.outcomes)) for case in cases]
        return trials, right, computes

    def _transposed(self, cases: Sequence[Case]) -> str:
        """Which matrices are stored column by column, as the file says, if that explains all wrong shapes; "" if not."""
        mistakes = {each.mistake for case in cases for each in case.outcomes if each.wrong}
        code, text = (mistakes.pop() if len(mistakes) == 1 else None) or ("", "")
        if code != "transposed-index" or any(case.faults or case.never or case.uncertain or case.outside for case in cases):
            return ""
        names = dict(zip("ABC", self.meaning.names(self.kernel), strict=True))
        turned = re.findall(r"\{(\w)\}", text.partition(":")[0])
        why = {each: said_transposed(self.file, self.kernel, self.meaning, each) for each in turned}
        told = "; ".join(f"{names[each]} is stored column by column, as {says} says" for each, says in why.items())
        return told if all(why.values()) else ""

    def _is_right(self, program: Program, sizes: Sizes, version: int = 0) -> bool:
        task = self.task(sizes)
        task = replace(task, seconds=min(self.seconds, _BRIEF)) if version else task  # a change may make a loop endless
        case, _ = program.launched(task, orders=1, watch=ELEMENTS | VERSIONS * bool(version), version=version)
        is_triangle = not (self.is_exercise or version or case.faults or case.uncertain) and bool(_triangle([case], task.names))
        is_as_said = is_triangle or (not self.is_exercise and bool(self._transposed([case])))
        return bool(case.outcomes) and (case.is_right or is_as_said)

    def usual_shapes(self) -> list[Sizes]:
        """A shape of whole blocks and tiles; one with partial ones; one smaller than a tile; one with a long sum; one whose
        element numbers overflow a short. UsageError if the block cannot be evaluated."""
        small = self.meaning.on((_LEAST, _LEAST, _LEAST))
        block = self.launch.block_at({**self.file.constants, **dict(zip("nlm", small, strict=True))})
        tile = min(_MOST, max(_LEAST, *block)) if min(block) > 1 else 4 * _LEAST
        shapes = [(2 * tile, 3 * tile, tile), (2 * tile + 5, tile + 3, tile + 9), (3, 5, 2), (7, _LONG, 5), (_LONG, 3, 139)]
        if "blockIdx" not in self.kernel.indices and set(self.launch.grid) <= {"1", str(self.meaning.batch)}:
            shapes = [small, (5, 5, 5) if self.meaning.square else (5, 7, 6)]
        elif self.meaning.square:
            shapes = [(size,) * 3 for size in (2 * tile, 2 * tile + 5, 3, _LONG)]
        elif uses_narrow_integers(self.kernel):  # A, B and C of more elements than a short can number
            shapes = [*shapes[:3], (_LONG, _LONG, 3), (3, _LONG, _LONG), (_LONG, 3, _LONG)]
        stated = multiples_of(self.file, self.kernel)
        named = zip(self.kernel.parameters, self.meaning.of, strict=True)
        parts = {of: stated[each.name][0] for each, of in named if each.name in stated}
        every, _ = stated.get(EVERY_SIZE, (1, 0))
        multiples = [parts.get("n" if self.meaning.square else of, every) for of in "nlm"]
        return list(dict.fromkeys(self.meaning.on(_rounded(shape, multiples)) for shape in shapes))

    def traced(self, *shapes: Sizes) -> tuple[Case, list[Access]]:
        """The first of these shapes on which the kernel is wrong, else the first of all, with all accesses to memory in order,
        up to one that stops the kernel. EmulationError if the kernel does not compile, or crashes."""
        with new_folder() as folder:
            program, found = self._program(folder, traced=True), list[tuple[Case, list[Access]]]()
            for task in map(self.task, shapes):
                case, traced = program.launched(task, orders=1, watch=ELEMENTS | TRACE)
                if not traced and found:
                    break
                if not traced:
                    why = case.faults[0].text if case.faults else "it crashed"
                    raise EmulationError("launch", f"{self.kernel.name} cannot be shown: {why}; lab run says where")
                found.append((case, program.accesses(traced)))
                if not case.is_right:
                    return found[-1]
            return found[0]

    def task(self, sizes: Sizes) -> Task:
        """The launch on this shape, or on the nearest that the kernel can take."""
        sizes = self.meaning.on(sizes)
        grid, block, shared = self.launch.at({**self.file.constants, **dict(zip("nlm", sizes, strict=True))})
        names = self.meaning.names(self.kernel)
        scales, batch = self.meaning.scales, self.meaning.batch
        return Task(
            self.meaning.dtype, self.meaning.of_factors, sizes, grid, block, shared, self.seed, self.seconds, names, scales, batch
        )

    def _cases(self, program: Program, shapes: Sequence[Sizes]) -> list[Case]:
        """The runs on these shapes, without a large one that ran out of time: a slow kernel is not wrong."""
        cases, seconds, loops = list[Case](), self.seconds, loops_in(self.file.text, self.kernel.name)
        sites: tuple[Site, ...] = ()
        for sizes in shapes:
            try:
                task = replace(self.task(sizes), seconds=seconds)
            except UsageError as error:
                if sizes is shapes[-1] and not any(any(case.grid) for case in cases):
                    raise
                cases.append(Case(self.meaning.on(sizes), (0, 0), (0, 0), faults=(Finding(one_line(error), error.code),)))
                continue
            is_large = math.prod(task.sizes) > _LARGE
            orders = 1 if is_large and len(shapes) > 1 else len(ORDERS)
            case, counts = program.launched(task, orders=orders, watch=ELEMENTS if is_large else ELEMENTS | REQUESTS)
            # An endless kernel shall not take the whole limit on each shape.
            codes = {each.code for each in case.faults}
            seconds = self.seconds / 2 if "no-end" in codes else seconds
            is_wide = cases and task.sizes[0] * task.sizes[2] > _MANY
            if codes == {"no-end"} and is_wide and not self._is_endless(program, task):
                notes = (*cases[0].notes, f"not looked at on {task.sizes[0]}×{task.sizes[1]}×{task.sizes[2]}, for lack of time")
                cases[0] = replace(cases[0], notes=notes)
                continue
            if len(case.outcomes) < orders and not case.faults:
                crash = Finding("it crashed: the kernel ended the process", "kernel-crashed")
                case = replace(case, faults=(crash,))
            if is_large and not case.faults and len(shapes) == 1:
                counted, counts = program.launched(task, orders=1, watch=REQUESTS)
                case = replace(case, outcomes=counted.outcomes)
            if case.outcomes and not case.faults:
                found, branches = program.use(counts)
                sites = found or (sites if case.wrong else ())  # another shape has the same lines
                case = replace(case, sites=sites, branches=branches)
            cases.append(replace(case, loops=loops))
        return cases

    def _is_endless(self, program: Program, task: Task) -> bool:
        """Whether one of many blocks does not end, either."""
        if math.prod(task.grid) < _BLOCKS or "gridDim" in self.kernel.indices:
            return False
        case, _ = program.launched(replace(task, grid=(1,) * len(task.grid)), orders=1, watch=ELEMENTS)
        return any(each.code == "no-end" for each in case.faults)


def _is_explained(case: Case) -> bool:
    """Whether what was found tells the cause: not an access out of bounds or a variable without a value, and not a race of
    threads that only write; nor sums with missing terms."""
    unexplained = [fault.code in _EFFECTS or (fault.code == "data-race" and " reads " not in fault.text) for fault in case.faults]
    mistakes = {each.mistake[0] for each in case.outcomes if each.mistake} - {"wrong-terms"}
    return not all(unexplained) or bool(mistakes) or any(each.code not in _EFFECTS for each in case.hints)


def _triangle(cases: Sequence[Case], names: Sequence[str]) -> str:
    """What all outcomes of wrong shapes say that a kernel of triangular matrices computes; "" if they do not agree."""
    texts = {each.triangle for case in cases for each in case.outcomes if each.wrong or case.faults}
    return texts.pop().format(**dict(zip("ABC", names, strict=True))) if len(texts) == 1 else ""


def _rounded(shape: Sizes, multiples: Sequence[int]) -> Sizes:
    return tuple(size + -size % of for size, of in zip(shape, multiples, strict=False))


def _may_be_launched_wrongly(cases: Sequence[Case]) -> bool:
    """Whether a wrong guess of the launch may explain what is wrong: elements that several threads or none write, accesses out of
    bounds, missing values. A race of a read and a write misses a barrier."""
    first = cases[:2]
    faults = [fault for case in first for fault in without_repetition(case.faults) if fault.code != "no-end"]
    may_be = any(fault.code != "data-race" or " reads " not in fault.text for fault in faults)
    return not any(case.is_right for case in first) and (may_be or any(case.never or case.uncertain for case in first))


def _without_refuted(cases: list[Case]) -> list[Case]:
    """The cases without a wrong index, row stride or operand as explanation that does not explain all wrong cases."""
    wrong = {each.mistake and each.mistake[0] for case in cases if not case.faults for each in case.outcomes if each.wrong}
    if len(wrong) < 2:
        return cases

    def kept(each: Outcome) -> Outcome:
        return replace(each, mistake=None) if each.mistake and each.mistake[0] != "wrong-terms" else each

    return [replace(case, outcomes=tuple(map(kept, case.outcomes))) for case in cases]


def chosen(file: StudentFile, wanted: str, *, for_cpu: bool = True) -> tuple[StudentFile, StudentKernel, str]:
    """The file, with integer template arguments as constants; the kernel to launch; and its name with template arguments.

    `wanted`: a kernel's name, maybe with template arguments; "" for the only one. UsageError if there is no such kernel, or the
    file has unsupported CUDA.
    """
    name, names = wanted.partition("<")[0].strip(), [kernel.name for kernel in file.kernels]
    if for_cpu and (not names or (not wanted and len(names) > 1 and file.has_main)):
        refuse_unsupported(joined(file.texts), file.path.name)  # maybe why no kernel is found, or main() is not run
    why = ""
    if not names:
        why = f"{file.path} has no kernel: a function that begins with __global__ void"
    elif not wanted and len(names) > 1:
        why = f"{file.path.name} has the kernels {', '.join(names)}: --kernel NAME, or a line // lab: kernel(NAME), chooses one"
    elif name and name not in names:
        why = f"{file.path.name} has no kernel {name}: it has {', '.join(names)}"
    if why:
        raise UsageError(why, code="lab-kernel")
    kernel = file.kernels[names.index(name) if name else 0]
    launched = set(re.findall(rf"\b{kernel.name}\s*<([^<>;]*)>\s*<<<", file.text))
    if kernel.template and "<" not in wanted and len(launched) == 1:
        wanted = f"{kernel.name}<{launched.pop()}>"  # from the host code
    if kernel.template and "<" not in wanted:  # the first explicit instance, or of float
        instances = re.findall(rf"\btemplate\s+__global__\s+void\s+{kernel.name}\s*<([^<>;]*)>\s*\(", file.text)
        if set(kernel.template) <= {each.type for each in kernel.parameters}:
            instances.append(", ".join(["float"] * len(kernel.template)))
        wanted = f"{kernel.name}<{instances[0]}>" if instances else wanted
    inner = re.fullmatch(r"[^<]*<(.*)>\s*", wanted)
    arguments = [text.strip() for text in inner[1].split(",")] if inner else []
    if len(arguments) != len(kernel.template):
        is_template = f"is a template of {', '.join(kernel.template)}: --kernel '{kernel.name}<…>' gives them"
        how = is_template if kernel.template else f"is no template: --kernel {kernel.name}"
        raise UsageError(f"{kernel.name} {how}", code="lab-kernel")
    if for_cpu:
        refuse_unsupported(file.compiled, file.path.name)
        refuse_host_calls(joined(file.texts), file.path.name)
    refuse_without_host(file, kernel)
    values = dict(zip(kernel.template, arguments, strict=True))
    constants = {key: int(value) for key, value in values.items() if value.isdecimal()}
    return replace(file, constants={**file.constants, **constants}), kernel.instance(arguments), wanted or kernel.name


_TYPES = {  # NumPy's names of elements' types
    "float": "f4", "double": "f8", "half": "f2", "__half": "f2", "int": "i4", "unsigned": "u4", "unsigned int": "u4",
    "char": "i1", "unsigned char": "u1", "short": "i2", "long long": "i8",
}  # fmt: skip
_COUNTED = 1 << 15  # elements; on larger shapes no requests to memory are counted
_BINS, _SCALE, _UNWRITTEN = 256, 3, 0xA5
_WEIGHTS, _WEIGHTED = (1, 2, 4, 2, 1), "weighted sum of neighbours"
_OF_WEIGHTS = re.compile(r"w|.*(weight|mask|filter|coef)", re.IGNORECASE)
_ROWS = re.compile(r"h|height|ny|rows?|num_?rows", re.IGNORECASE)
_OF_BINS = re.compile(r"bin|range|level", re.IGNORECASE)
_NAMES = {  # what a kernel of this name promises
    r"axpy": "a·x + y", r"transpose": "transpose", r"hist": "histogram", r"stencil": "stencil", r"dot|inner": "dot product",
    r"(vec|mat|arr).*(add|sum)|(add|sum).*(vec|mat|arr)|^add": "x + y", r"reduc|^(block_?)?sum|total": "sum",
}  # fmt: skip
_EXTREME = re.compile(  # of a result that no atomic update joins, which would need a first value
    r"(?:_|block|reduc(?:e|tion)|kernel|find|get|gpu|arr(?:ay)?|vec(?:tor)?)*(max|min)(?:imum)?"
    r"(?:_|block|reduc(?:e|tion)|kernel|gpu|arr(?:ay)?|vec(?:tor)?|val(?:ue)?)*",
    re.IGNORECASE,
)
_VARIANT = re.compile(r"max|min|mean|avg|norm|sq|prod|abs|weight", re.IGNORECASE)


@record
class FirstKernel(_Tried):
    """A kernel of arrays, sizes and numbers that is no matrix product.

    `arrays`: for each the type of the elements, its begin ("values", "zeros" or "unwritten"), and its length ("one", "blocks",
    "bins" or "all"). `result`: the array that the kernel writes.
    """

    arrays: Mapping[str, tuple[str, str, str]]
    result: str
    rows: str  # the size that is the number of rows, if there are two
    wanted: str  # what it must compute, whatever its name; "" if its name tells

    @property
    def promised(self) -> str:
        """What the kernel must compute, or its name promises; "" if unknown."""
        extreme = None if "atomic" in self.kernel.body else _EXTREME.fullmatch(self.kernel.name)
        if extreme and not self.wanted:
            return extreme[1].lower() + "imum"
        return self.wanted or next(
            (what for pattern, what in _NAMES.items() if re.search(pattern, self.kernel.name, re.IGNORECASE)), ""
        )

    @property
    def is_plain(self) -> bool:
        """Whether the result must be what is promised; False for possible variants."""
        if self.wanted or self.promised in ("maximum", "minimum"):
            return True
        of_weights = re.search(r"[*/]", re.sub(r"\[[^\]]*\]|[^;]*\bblock(?:Idx|Dim)\b[^;]*;", "", self.kernel.body))
        of_a_range = any(not (each.is_pointer or each.is_number) for each in self.kernel.parameters)
        is_variant = _VARIANT.search(self.kernel.name) or {"stencil": of_weights, "histogram": of_a_range}.get(self.promised)
        return bool(self.promised) and not is_variant

    def _cases(self, program: Program, shapes: Sequence[Sizes]) -> list[Case]:
        """The runs on these shapes, up to one that does not end."""
        cases: list[Case] = []
        for sizes in shapes:
            cases.append(self._case(sizes, program))
            if any(each.code == "no-end" for each in cases[-1].faults):
                break
        return cases

    def _explained(
        self, program: Program, cases: list[Case], shapes: Sequence[Sizes], folder: Path
    ) -> tuple[_Tried, list[Case], str]:
        return (self, self._repaired(cases, folder, self.result), self.promised) if self.is_plain else (self, cases, "")

    def usual_shapes(self) -> list[Sizes]:
        """A shape of whole blocks, one with a partial block, a tiny one and a large one; of multiples that the file states."""
        parts = {name == self.rows: of for name, (of, _) in multiples_of(self.file, self.kernel).items()}
        shapes = [_rounded(sizes, [parts.get(len(sizes) > 1, 1), parts.get(False, 1)]) for sizes in self._shapes()]
        return list(dict.fromkeys(shapes))

    def _shapes(self) -> list[Sizes]:
        names = [each.name for each in self.kernel.parameters if each.is_number and not _OF_BINS.search(each.name)]
        if is_by_rows(self.kernel):
            threads = self.launch.block_at({**self.file.constants, "n": 1, "m": 1})[0]
            return [(5, 4 * threads), (7, 4 * threads - 27), (2, 3), (190, 200)]
        if len(names) > 1:
            return [(64, 96), (37, 50), (2, 3), (190, 200)]
        read = " ".join(index for name in self.arrays for index in indices_of(name, self.kernel.accesses))
        if names and re.search(rf"\* *{names[0]}\b|\b{names[0]} *\*", read):  # rows of a square matrix
            return [(edge, edge) for edge in (64, 37, 3, 190)]
        (many, *_), (threads, *_), _ = self.launch.at({**self.file.constants, "n": 1 << 16, "m": 1 << 16})
        (few, *_), *_ = self.launch.at({**self.file.constants, "n": 1, "m": 1})
        if many == few and "gridDim" not in self.kernel.body:  # there are no more threads for more elements
            return [(many * threads,), (many * threads - 3,), (3,)]
        return [(4 * threads,), (4 * threads - 27,), (3,), (40_001,)]

    def _is_right(self, program: Program, sizes: Sizes, version: int = 0) -> bool:
        return self._case(sizes, program, version).is_right

    def _case(self, sizes: Sizes, program: Program, version: int = 0) -> Case:
        """Run the kernel on arrays of `sizes`: rows and columns, or the number of elements."""
        rows, columns = (1, *sizes)[-2:]
        launch = self.launch.at({**self.file.constants, "n": sizes[0], "m": columns})
        bins = max([_BINS, *(value for name, value in self.file.constants.items() if _OF_BINS.search(name))])
        of_length = {"one": 1, "blocks": launch[0][0], "bins": min(bins, _COUNTED), "all": rows * columns}
        begun: dict[str, np.ndarray] = {}
        arrays, random = [], np.random.default_rng([self.seed, len(self.arrays)])
        for name, (kind, begins, length) in self.arrays.items():
            content = np.full(of_length[length] * np.dtype(kind).itemsize, _UNWRITTEN * (begins == "unwritten"), "u1").view(kind)
            if begins == "values":
                is_signed = content.dtype.kind != "u" and self.promised != "histogram"
                drawn = random.integers(19, size=len(content)) - 9 * is_signed
                drawn += max(self._letters, default=0) * (self.promised == "histogram" and content.dtype.itemsize == 1)
                if is_signed and self.promised in ("maximum", "minimum"):  # 0 in place of a missing element is wrong then
                    drawn = 1 + abs(drawn) if self.promised == "minimum" else -1 - abs(drawn)
                content = begun[name] = drawn.astype(kind)
                if self.wanted == _WEIGHTED and _OF_WEIGHTS.match(name):
                    content.fill(0)
                    content[: len(_WEIGHTS)] = _WEIGHTS[: len(content)]
            arrays.append((content, True))
        numbers, scales = [], count(_SCALE, _SCALE)
        for each in (each for each in self.kernel.parameters if not each.is_pointer):
            size = _BINS if _OF_BINS.search(each.name) else rows if each.name == self.rows else columns
            numbers.append(size if each.is_number else next(scales))
        places = [(name, 0, len(content)) for name, (content, _) in zip(self.arrays, arrays, strict=True)]
        watch = ELEMENTS | VERSIONS * bool(version) | REQUESTS * (math.prod(sizes) <= _COUNTED)
        seconds = min(self.seconds, _BRIEF) if version else self.seconds
        looked, ended = program.run(sizes, launch, arrays, [*numbers, version], places, seconds, watch=watch)
        if_right = looked.if_right if self.is_plain else looked
        found = if_right.faults
        if not ended:
            found = found or (Finding("it ended without a result", "kernel-crashed"),)
        elif not found:
            found = tuple(self._compared(sizes, begun, ended[0]["ended"][list(self.arrays).index(self.result)]))
            looked = looked if found else if_right
        if found:
            return replace(looked, faults=tuple(dict.fromkeys([*looked.hints, *looked.faults, *found])), hints=())
        sites, branches = program.use(ended[0])
        notes = (*looked.notes, *map(str, looked.hints))
        return replace(looked, sites=sites, branches=branches, faults=(), hints=(), notes=notes)

    def _compared(self, sizes: Sizes, begun: Mapping[str, np.ndarray], ended: np.ndarray) -> Iterator[Finding]:
        radius = next((value for name, value in self.file.constants.items() if re.match(r"R$|rad", name, re.IGNORECASE)), 1)
        radius = len(_WEIGHTS) // 2 if self.wanted else radius
        has_ends = self.promised in ("stencil", _WEIGHTED)  # a kernel may leave these unwritten
        # x first, then weights, then a y that becomes the result
        inputs = sorted(begun, key=lambda name: (name == self.result, _OF_WEIGHTS.match(name) is not None))
        made = dict(_computed([begun[name].astype("f8") for name in inputs], sizes, radius, len(ended)))
        if self.arrays[self.result][2] == "blocks":  # partial sums
            join = {"maximum": np.max, "minimum": np.min}.get(self.promised, np.sum)
            ended = join(ended.astype("f8"), keepdims=True)
        elif self.arrays[self.result][1] == "unwritten":
            never = np.flatnonzero(ended.view(f"V{ended.itemsize}") == np.void(bytes([_UNWRITTEN]) * ended.itemsize))
            if len(never) > 2 * radius * has_ends and self.is_plain:
                text = f"{len(never)} of {self.result}'s {len(ended)} elements never written, the first {self.result}[{never[0]}]"
                yield Finding(f"{text}{self._stored()}", "never-written")
                return
        right = made.get(self.promised)
        if self.promised == "histogram" and not self.wanted:
            right = next((each for each in self._histograms(begun[inputs[0]], len(ended)) if _same(ended, each)), right)
        if right is None or len(right) != len(ended) or _same(ended, right) or not self.is_plain:
            return
        also = next((f"; it is {what}" for what, each in made.items() if _same(ended, each)), "")
        wrong = np.flatnonzero((ended != right) & np.isfinite(right))
        text = f"{len(wrong)} of {len(ended)} elements are not the {self.promised} that the name promises, the first "
        text += f"{self.result}[{wrong[0]}]: {ended[wrong[0]]:g} instead of {right[wrong[0]]:g}{also}{self._stored()}"
        yield Finding(text, "wrong-elements")

    @property
    def _letters(self) -> list[int]:
        """The letters from which on the kernel counts others."""
        return [ord(each) for each in re.findall(r"-\s*'(\w)'", "\n".join(self.file.lines[self.kernel.line - 1 :]))]

    def _histograms(self, values: np.ndarray, length: int) -> Iterator[np.ndarray]:
        """Histograms with bins of several values, and from a letter on, as the kernel's text has them."""
        widths = [value_of(text, self.file.constants) or 1 for text in re.findall(r"/\s*(\w+)", self.kernel.body)]
        widths += [1 << int(bits) for bits in re.findall(r">>\s*(\d)\b", self.kernel.body)]
        for width in {1, *widths}:
            for first in {0, *self._letters}:
                bins = (values.astype(int) - first) // width
                yield np.bincount(bins[bins >= 0], minlength=length).astype(float)

    def _stored(self) -> str:
        lines = enumerate(self.file.lines[self.kernel.line - 1 :], self.kernel.line)
        return next((f"; line {number} stores to {self.result}" for number, line in lines if is_written(self.result, line)), "")


def _computed(inputs: list[np.ndarray], sizes: Sizes, radius: int, length: int) -> Iterator[tuple[str, np.ndarray]]:
    """The results that a first kernel may compute from these inputs, by name; NaN where any value is right."""
    if not inputs:
        return
    x, y = inputs[0], inputs[-1]
    yield from (
        ("sum", x.sum(keepdims=True)),
        ("maximum", x.max(keepdims=True)),
        ("minimum", x.min(keepdims=True)),
        ("copy", x),
        ("a·x", _SCALE * x),
        ("max(x, 0)", np.maximum(x, 0)),
    )
    if len(x) == len(y):
        yield from (("dot product", np.array([x @ y])), ("x + y", x + y), ("x − y", x - y), ("a·x + y", _SCALE * x + y))
    if x.min() >= 0:
        yield "histogram", np.bincount(x.astype(int), minlength=length).astype(float)
    yield from (("inclusive scan", np.cumsum(x)), ("exclusive scan", np.cumsum(x) - x))
    if len(sizes) > 1 and len(x) == math.prod(sizes):
        yield "transpose", x.reshape(sizes).T.ravel()
    if len(x) > 2 * radius:
        for name, weights in (("stencil", np.ones(2 * radius + 1)), (_WEIGHTED, np.array(_WEIGHTS))):
            window, edge = np.convolve(x, weights, "same"), len(weights) // 2
            window[:edge] = window[len(x) - edge :] = np.nan
            yield name, window


def _same(ended: np.ndarray, made: np.ndarray) -> bool:
    return len(ended) == len(made) and bool(((ended == made) | np.isnan(made)).all())


def first_kernel(
    file: StudentFile, kernel: StudentKernel, instance: str, flags: Mapping[str, str], seconds: float, seed: int, wanted: str = ""
) -> FirstKernel | None:
    """How to run a kernel of arrays, sizes and numbers that multiplies no matrices; None for other kernels. UsageError if it
    writes to no array."""
    arrays = [each for each in kernel.parameters if each.is_pointer]
    numbers = [each for each in kernel.parameters if each.is_number]
    others = [each for each in kernel.parameters if not each.is_pointer and each not in numbers and each.type not in _TYPES]
    body = kernel.accesses
    indices = {index for each in arrays for index in indices_of(each.name, body)}
    is_product = len(arrays) == 3 and (not indices or (len(indices) > 1 and any(set("*(") & set(index) for index in indices)))
    is_product &= not re.search(rf"/=?\s*(?:{'|'.join(each.name for each in arrays) or '(?!)'})\s*\[", body)  # as in a solver
    is_other = others or not arrays or len(numbers) not in (1, 2) or (is_product and not wanted)
    if is_other or not {each.type for each in arrays} <= _TYPES.keys():
        return None
    roles = {each.name: (_TYPES[each.type], *_role(each.name, body)) for each in arrays}
    written = [name for name in roles if is_written(name, body)] or [each.name for each in arrays if not each.is_const]
    result = written[0] if written else ""
    if result and not is_written(result, body) and not re.search("axpy", kernel.name, re.IGNORECASE):  # what is called writes it
        roles[result] = (roles[result][0], "unwritten", roles[result][2])
    is_histogram = re.search("hist", kernel.name, re.IGNORECASE) and is_updated(result, body)
    if result and (wanted == "histogram" or is_histogram):
        roles[result] = (roles[result][0], "zeros", "bins")
    if wanted == "sum" and result and roles[result][2] == "all":
        roles[result] = (*roles[result][:2], "blocks")
    if not result:
        raise UsageError(f"{file.path.name}, line {kernel.line}: {kernel} writes to none of its arrays", code="lab-parameters")
    # The rows are the size with such a name, else the first that is no factor in an index of an input.
    names = [each.name for each in numbers if not _OF_BINS.search(each.name)]
    names = names if len(names) > 1 else []
    inputs = [name for name, (_, begins, _) in roles.items() if begins == "values"]
    read = " ".join(index for name in inputs for index in indices_of(name, body))
    no_factors = [name for name in names if not re.search(rf"\* *{name}\b|\b{name} *\*", read)]
    rows = next(iter([*filter(_ROWS.fullmatch, names), *no_factors]), "")
    launch = launch_of(file, kernel, None, flags, rows)
    return FirstKernel(file, kernel, instance, None, launch, seconds, seed, roles, result, rows, wanted)


def _role(name: str, body: str) -> tuple[str, str]:
    """An array's begin and length, as in `FirstKernel`."""
    indices = {each.replace(" ", "") for each in indices_of(name, body)}
    atomic = is_updated(name, body)
    by_value = any("[" in each for each in indices) or (atomic and "threadIdx.x" in indices)
    length = "bins" if by_value else "all"
    if indices <= {"0"} and (indices or re.search(rf"\*\s*{name}\b|\batomic\w+\s*\(\s*{name}\s*,", body)):
        length = "one"
    elif indices and indices <= {"blockIdx.x", "bid"}:
        length = "blocks"
    stores = len(re.findall(rf"(?<![\w.]){name}\s*\[[^;=]*?\]\s*=(?!=)", body))
    if not is_written(name, body):
        return "values", length
    return ("zeros" if atomic or length != "all" else "values" if len(indices_of(name, body)) > stores else "unwritten"), length
