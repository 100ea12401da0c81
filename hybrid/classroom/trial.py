# SPDX-License-Identifier: MIT
"""Generates, compiles and runs a program that launches a student's kernel on given arrays, in several orders of the threads and
with each memory access checked. C is compared here, not in the process that runs the student's code.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.classroom.launch import FIELDS_OF_COLUMNS, FIELDS_OF_ROWS, Meaning
from hybrid.classroom.mistakes import Finding, mistake_in, triangle_in
from hybrid.classroom.student_file import SCALES, Parameter, StudentFile, StudentKernel
from hybrid.classroom.telling import Matrix, Telling, not_used
from hybrid.core.problem import record
from hybrid.emulation import whole_program
from hybrid.emulation.errors import EmulationError
from hybrid.emulation.observed import Access, Branch, Site, accesses_of, branches_of, sites_of, symbols_of
from hybrid.errors import UsageError

ELEMENT_TYPES = {"float32": "float", "float64": "double", "int32": "int", "float16": "half", "int8": "signed char"}
_SHAPES = {"A": "nl", "B": "lm", "C": "nm"}
_EXACT = {"float32": 2**24, "float64": 2**52, "float16": 2**11, "int32": 2**31 - 1}  # integers up to this are exact
# Of A and B: in float64, a sum in float32 is then wrong; of int8, a sum in 16 bits.
_LARGEST = {"float32": 99, "float64": 1 << 20, "float16": 99, "int32": 99, "int8": 127}
_NO_FLOAT = 1 << 22  # with eighths, more digits than a float has
_FRACTION = 8  # elements are multiples of 1/8, so a sum in an int is wrong
_COUNTED, _TRACED = ("-fsanitize-coverage=trace-pc,trace-cmp",), ("-O0",)  # -O0 merges no iterations of a loop


def operands(
    sizes: Sequence[int], dtype: str, seed: int, scales: Sequence[float] = (1, 0), batch: int = 1, of_factors: str = ""
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A, B and C before the launch, and in float64 the right C after it; the seed determines them.

    `scales`: alpha and beta in C = alpha·A·B + beta·C. With beta = 0, C begins as NaN, or the least int. All sums are exact in
    the type, in any order of their terms. `batch`: that many products; their matrices lie one below the other. `of_factors`: the
    dtype of A and B, if another than C's.
    """
    n, l, m = sizes
    random = np.random.default_rng([seed, n, l, m])
    (alpha, beta), terms = scales, l + (tuple(scales) != (1, 0))
    of_factors = of_factors or dtype
    most = min(_LARGEST[of_factors], math.isqrt(_EXACT[dtype] // max(1, terms)))
    parts = 1 if dtype == "int32" else _FRACTION
    a, b = (
        (random.integers(1, most, shape, endpoint=True) / parts).astype(of_factors) for shape in ((batch * n, l), (batch * l, m))
    )
    if of_factors == "float64" and l > 1:  # of other factors than each other, so that their sums stay exact
        a[:, 0] += _NO_FLOAT
        b[-1] += _NO_FLOAT
    c = np.full((batch * n, m), np.iinfo(dtype).min if parts == 1 else np.nan, dtype)
    right = alpha * (a.astype(np.float64).reshape(batch, n, l) @ b.astype(np.float64).reshape(batch, l, m)).reshape(c.shape)
    if beta:
        c[:] = random.integers(1, _FRACTION, c.shape, endpoint=True)
        right += beta * c
    return a, b, c, right


def wrong_in(c: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, tuple[float, float] | None]:
    """The numbers of the wrong elements; and the value of the first one with the right value."""
    wrong = np.flatnonzero(c != right)
    return wrong, (float(c.flat[wrong[0]]), float(right.flat[wrong[0]])) if len(wrong) else None


Sizes = tuple[int, ...]  # n, l, m of a product; rows and columns, or the number of elements, for another kernel


@record
class Task:
    dtype: str  # of C
    of_factors: str  # the dtype of A and B
    sizes: tuple[int, int, int]  # n, l, m
    grid: tuple[int, ...]  # x and y, or x, y and z
    block: tuple[int, ...]
    shared: int  # bytes of dynamic shared memory
    seed: int
    seconds: float  # limit
    names: tuple[str, str, str]  # of A, B and C in the kernel
    scales: tuple[float, float] = (1, 0)  # alpha and beta in C = alpha·A·B + beta·C
    batch: int = 1  # products


@record
class Outcome:
    """The result of a launch that ended. Elements of C are numbered row by row."""

    wrong: tuple[int, ...]
    first_wrong: tuple[float, float] | None  # its value, and the right one
    first_writer: tuple[tuple[int, ...], ...]  # indices of the block and the thread that wrote it last
    nan: int  # number of elements that are NaN
    digest: str  # a hash of C
    mistake: tuple[str, str] | None  # explains a wrong C, from `mistake_in`
    triangle: str  # what a wrong C is by `triangle_in`
    never: tuple[int, ...]  # elements that no thread wrote
    several: tuple[int, ...]  # elements that several threads wrote
    writers: int  # threads that were the last to write some element
    outside: tuple[tuple[str, int], ...]  # the first changed element of A and of B: the matrix's name, the element's number
    loads: tuple[float, float]  # of elements of A and of B
    stores: float


@record
class Case:
    """The kernel's run on one shape."""

    sizes: Sizes
    grid: tuple[int, ...]
    block: tuple[int, ...]
    outcomes: tuple[Outcome, ...] = ()  # of a product, for each order of the threads up to one that was stopped
    sites: tuple[Site, ...] = ()  # without faults: how lines use memory
    branches: tuple[Branch, ...] = ()  # without faults
    shared: int = 0  # bytes of dynamic shared memory
    faults: tuple[Finding, ...] = ()  # other than wrong elements: races, stray accesses, a divergent barrier, an endless loop
    hints: tuple[Finding, ...] = ()  # possible causes of a wrong C; no faults if C is right
    notes: tuple[str, ...] = ()
    loops: tuple[tuple[int, int], ...] = ()  # the first and the last line of each
    printed: tuple[str, ...] = ()  # lines that the kernel printed, in one order of the threads
    batch: int = 1  # products

    @property
    def wrong(self) -> set[int]:
        """The wrong elements of C, numbered row by row."""
        return {each for outcome in self.outcomes for each in outcome.wrong}

    @property
    def never(self) -> set[int]:
        """The elements that no thread writes."""
        return {each for outcome in self.outcomes for each in outcome.never}

    @property
    def uncertain(self) -> set[int]:
        """The elements that several threads write."""
        return {each for outcome in self.outcomes for each in outcome.several}

    @property
    def depends_on_order(self) -> bool:
        """Whether C differs between orders of the threads."""
        return len({outcome.digest for outcome in self.outcomes}) > 1

    @property
    def outside(self) -> tuple[tuple[str, int], ...]:
        """Elements of A and B that the kernel changed: the matrix and the element's number."""
        return next((outcome.outside for outcome in self.outcomes if outcome.outside), ())

    @property
    def is_right(self) -> bool:
        return not (self.wrong or self.faults or self.outside or self.uncertain)

    @property
    def if_right(self) -> Case:
        """The same for a right result: values of shared memory that nothing has written, NaN here, did not reach it."""
        harmless = not_used(self.faults)
        kept = tuple(each for each in self.faults if each not in harmless)
        notes = [f"{each.text}; the result is right without it" for each in harmless]
        return replace(self, faults=kept, notes=(*self.notes, *notes))


class Program:
    """A compiled kernel with a main function that launches it."""

    def __init__(self, file: StudentFile, kernel: StudentKernel, text: str, folder: Path, *, traced: bool = False) -> None:
        """`text`: from `program_text`. `folder`: is created, and the kernel may write to it. `traced`: compiled so
        that each access in the source remains one. EmulationError if the text does not compile."""
        folder.mkdir()
        self._file, self._kernel, self._source = file, kernel, folder / file.path.name
        self._path, self._warnings = whole_program.built(self._source, text, _TRACED if traced else _COUNTED)

    def run(
        self,
        sizes: Sizes,
        launch: tuple[tuple[int, ...], tuple[int, ...], int],
        arrays: Sequence[tuple[np.ndarray, bool]],
        numbers: Sequence[int],
        names: Sequence[Matrix],
        seconds: float,
        *,
        orders: int = 1,
        seed: int = 0,
        watch: int,
    ) -> tuple[Case, list[dict[str, Any]]]:
        """Launch the kernel; returns its case, and the "outcome" event of each order of the threads that ended.

        `launch`: grid, block and bytes of dynamic shared memory. `arrays`: each with whether the kernel gets its values, else
        uninitialised memory. `watch`: what the observers count.
        """
        grid, block, shared = launch
        words = [*(*grid, 1)[:3], *(*block, 1)[:3], shared, orders, seed, watch, arrays[-1][0].itemsize, len(arrays)]
        words += [number for array, has_values in arrays for number in (array.nbytes, int(has_values))]
        printed: list[str] = []
        (ran,) = whole_program.run(
            *(self._path, self._source, [str(word) for word in [*words, *numbers]], math.ceil(seconds), printed.append),
            current=self._source.parent,
            arrays=[array for array, _ in arrays],
            launches=orders,
        )
        sources = {path.name: text.split("\n") for path, text in self._file.texts.items()}
        found = Telling(ran, self._path, self._warnings, sources, seconds, names).of_launch()
        case = Case(sizes, grid, block, shared=shared, printed=tuple("".join(printed).splitlines()), **found)
        outcomes = [each for each in ran.findings if each["event"] == "outcome"]
        for each in outcomes:
            each["ended"] = [end.view(array.dtype) for end, (array, _) in zip(each["ended"], arrays, strict=True)]
        return case, outcomes

    def launched(self, task: Task, *, orders: int, watch: int, version: int = 0) -> tuple[Case, dict[str, Any]]:
        """Launch a kernel that multiplies matrices; returns its case, with the outcome of each order up to the first that was
        stopped, and the first order's "outcome" event, also of a stopped one that was traced."""
        a, b, c, right = operands(task.sizes, task.dtype, task.seed, task.scales, task.batch, task.of_factors)
        case, ended = self.run(
            task.sizes,
            (task.grid, task.block, task.shared),
            [(a, True), (b, True), (c, task.scales[1] != 0)],
            [*task.sizes, version],
            [(name, *matrix.shape) for name, matrix in zip(task.names, (a, b, c), strict=True)],
            task.seconds,
            orders=orders,
            seed=task.seed,
            watch=watch,
        )
        outcomes = tuple(_outcome(task, each, (a, b, c), right) for each in ended if each["is_well"])
        if len(outcomes) == orders and not any(each.wrong for each in outcomes):
            case = case.if_right
        return replace(case, outcomes=outcomes, batch=task.batch), ended[0] if ended else {}

    def use(self, counted: Mapping[str, Any]) -> tuple[tuple[Site, ...], tuple[Branch, ...]]:
        """How the file's lines use memory, and its branches."""
        of = self._path, self._file.path.name
        return sites_of(counted["sites"], *of), branches_of(counted["branches"], *of)

    def accesses(self, counted: Mapping[str, Any]) -> list[Access]:
        """All accesses to memory, in order. EmulationError if there are more than the observers keep."""
        if not counted["is_all"]:
            raise EmulationError("launch", "the kernel accesses memory more often than can be shown: take smaller sizes")
        return accesses_of(counted["trace"], self._path, self._file.path.name, self.shared_variables())

    def shared_variables(self) -> list[tuple[str, int, int]]:
        """Each __shared__ variable's name, offset and bytes."""
        return [(name, at, size) for name, kind, at, size in symbols_of(self._path) if kind == "TLS"]


def _outcome(task: Task, event: Mapping[str, Any], begun: Sequence[np.ndarray], right: np.ndarray) -> Outcome:
    a, b, before = begun
    after = [now.reshape(was.shape) for now, was in zip(event["ended"], begun, strict=True)]
    c, writers = after[2], event["writers"].view("i8")
    (wrong, first), (alpha, beta) = wrong_in(c, right), task.scales
    is_now, should_be = ((each.astype("f8") - (beta * before if beta else 0)) / alpha for each in (c, right))
    is_one, mistake = first is not None and task.batch == 1, None
    if is_one:
        mistake = (_again(c - right, before, beta) if beta else None) or mistake_in(is_now, should_be, a, b)
    wrong_writers = [abs(int(writers[each])) for each in wrong[:1]]
    changed = [np.flatnonzero(now != was) for now, was in zip(after, (a, b), strict=False)]
    loads_of_a, loads_of_b, stores = (moved / each.itemsize for moved, each in zip(event["moved"], begun, strict=True))
    return Outcome(
        wrong=tuple(wrong.tolist()),
        first_wrong=first,
        first_writer=next((_block_and_thread(writer - 1, task) for writer in wrong_writers if writer), ()),
        nan=int(np.isnan(c).sum()),
        digest=hashlib.sha256(c.tobytes()).hexdigest(),
        mistake=mistake,
        triangle=triangle_in(c, writers.reshape(c.shape) == 0, a, b) if is_one and task.scales == (1, 0) else "",
        never=tuple(np.flatnonzero(writers == 0).tolist()),
        several=tuple(np.flatnonzero(writers < 0).tolist()),
        writers=int(np.count_nonzero(np.unique(abs(writers)))),
        outside=tuple((name, int(each[0])) for name, each in zip(task.names, changed, strict=False) if len(each)),
        loads=(loads_of_a, loads_of_b),
        stores=stores,
    )


def _again(more: np.ndarray, before: np.ndarray, beta: float) -> tuple[str, str] | None:
    """The mistake that adds beta·C several times."""
    times = more.flat[0] / (beta * before.flat[0]) + 1
    if times > 1 and (more == (times - 1) * beta * before).all():
        return "wrong-terms", f"beta·{{C}} is added {times:g} times, and once is right: it may stand in the loop over k"
    return None


def _block_and_thread(number: int, task: Task) -> tuple[tuple[int, ...], ...]:
    """The indices of the block and the thread with this number, counted block by block, x fastest."""
    both = zip(divmod(number, math.prod(task.block)), (task.grid, task.block), strict=True)
    return tuple(tuple(map(int, np.unravel_index(each, extents[::-1])[::-1])) for each, extents in both)


# --- the program's text


def program_text(
    file: StudentFile, kernel: StudentKernel, instance: str, meaning: Meaning | None, versions: Mapping[int, str] | None = None
) -> str:
    """The text of a program that launches the kernel on the arrays A, B, C and the numbers n, l, m, or without a meaning on an
    array for each pointer and a number for each other parameter. `instance`: the kernel's name with its template arguments.
    `versions`: of the file's compiled text, by number; the launch's next number chooses one."""
    lines, arguments, counts = list[str](), [instance], {True: 0, False: 0}
    element = {of: ELEMENT_TYPES[meaning.dtype if of == "C" else meaning.of_factors] for of in "ABC"} if meaning else {}
    for parameter, of in zip(kernel.parameters, meaning.of if meaning else [""] * len(kernel.parameters), strict=True):
        if meaning is None:
            arguments.append((_array if parameter.is_pointer else _number)(parameter.type, counts[parameter.is_pointer]))
            counts[parameter.is_pointer] += 1
        elif of.isdecimal():
            arguments.append(of)
        elif parameter.is_number:
            arguments.append(_number(parameter.type, "nlm".index(of[-1]), of[:-1]))
        elif parameter.is_scale:
            arguments.append(f"{parameter.type}({dict(zip(SCALES, meaning.scales, strict=True))[of]})")
        elif parameter.is_pointer:
            arguments.append(_array(element[of], "ABC".index(of)))
        else:
            lines.append(f"{parameter.type} lab_struct_{of};")
            for name, kind, what in fields_of(file, parameter, of):
                value = _array(element[of], "ABC".index(of)) if what == of else _number(kind, "nlm".index(what))
                lines.append(f"lab_struct_{of}.{name} = {value};")
            arguments.append(f"lab_struct_{of}")
    body = "\n".join([*lines, f"lab_launched.call({', '.join(arguments)});"])
    headers = "".join(f"#include <{name}>\n" for name in file.headers)

    def launching(name: str, compiled: str) -> str:
        return f'#line 1 "{name}"\n{compiled}\n#line 1 "launch"\n{_LAUNCH}\n{{\n    {body}\n}}'

    if versions is None:
        whole = launching(file.path.name, file.compiled)
    else:  # our headers once, before all versions
        headers_of_ours = re.findall(r'^[ \t]*#[ \t]*include[ \t]*"[^"\n]*"', file.compiled, re.MULTILINE)
        parts = [
            f"namespace version_{number} {{\n{launching(f'version {number}', each)}\n}}" for number, each in versions.items()
        ]
        cases = (
            f"case {number}: return version_{number}::lab_launch(lab_launched, lab_arrays, lab_numbers);" for number in versions
        )
        chooses = 3 if meaning else counts[False]
        whole = "\n".join([*headers_of_ours, *parts, _LAUNCH, "{", f"switch (lab_numbers[{chooses}]) {{", *cases, "}", "}"])
    return f"""{headers}namespace {{
{whole}
}}
int main(int, char** lab_words)
{{
    return cuda_on_cpu::trial(lab_words, "{kernel.name}", lab_launch);
}}
"""


def _number(kind: str, number: int, factor: str = "") -> str:
    return f"static_cast<{kind}>({factor}lab_numbers[{number}])"


def _array(element: str, number: int) -> str:
    return f"static_cast<{element}*>(lab_arrays[{number}])"


_LAUNCH = "void lab_launch(cuda_on_cpu::Launched& lab_launched, void* const* lab_arrays, const long long* lab_numbers)"


def fields_of(file: StudentFile, parameter: Parameter, of: str) -> Iterator[tuple[str, str, str]]:
    """For each field of a struct that is the matrix `of`: its name, its type, and which of the matrix, n, l or m it is.
    UsageError for an unknown name."""
    for name, kind in file.structs[parameter.type].items():
        if kind.endswith("*"):
            yield name, kind, of
        elif name.lower() in (*FIELDS_OF_ROWS, *FIELDS_OF_COLUMNS):
            yield name, kind, _SHAPES[of][name.lower() in FIELDS_OF_COLUMNS]
        else:
            what = f"what {name} of the struct {parameter.type} stands for"
            raise UsageError(f"{what} cannot be told: width, height and stride are known", code="lab-parameters")
