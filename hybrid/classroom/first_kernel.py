# SPDX-License-Identifier: MIT
"""A first kernel, as a vector addition, saxpy, reduction, transpose, histogram or stencil: it runs with each access looked
at, and its result is compared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from hybrid.classroom.case import without_repetition
from hybrid.classroom.finding import Finding
from hybrid.classroom.launch import Launch, indices_of, is_written, launch_of_arrays
from hybrid.classroom.student_file import StudentFile, StudentKernel
from hybrid.classroom.trial import Program, of_arrays
from hybrid.core.problem import record
from hybrid.emulation.child import new_folder
from hybrid.errors import UsageError

_TYPES = {  # of elements, as NumPy has them
    "float": "f4", "double": "f8", "half": "f2", "__half": "f2", "int": "i4", "unsigned": "u4", "unsigned int": "u4",
    "char": "i1", "unsigned char": "u1", "short": "i2", "long long": "i8",
}  # fmt: skip
_BINS, _SCALE, _UNWRITTEN = 256, 3, 0xA5
_ROWS = re.compile(r"h|height|ny|rows?|num_?rows", re.IGNORECASE)
_OF_BINS = re.compile(r"bin|range|level", re.IGNORECASE)
_NAMES = {  # what a kernel computes, by its name
    r"axpy": "a·x + y", r"transpose": "transpose", r"hist": "histogram", r"stencil": "stencil", r"dot|inner": "dot product",
    r"(vec|mat|arr).*(add|sum)|(add|sum).*(vec|mat|arr)|^add": "x + y", r"reduc|^sum|total": "sum", r"scale": "a·x",
    r"copy": "copy", r"relu": "max(x, 0)", r"exclusive": "exclusive scan", r"scan|prefix": "inclusive scan",
}  # fmt: skip
# Others have variants that are right, too.
_PLAIN = {"a·x + y", "x + y", "transpose", "histogram", "dot product", "sum", "stencil"}
_VARIANT = re.compile(r"max|min|mean|avg|norm|sq|prod|abs|weight", re.IGNORECASE)


@record
class FirstKernel:
    """A kernel of arrays, sizes and numbers, and how it is launched. `arrays`: by name, the type of the elements, with what it
    begins ("values", "zeros" or "unwritten"), and its length ("one", "blocks", "bins" or "all"); `result`: what is written."""

    file: StudentFile
    kernel: StudentKernel
    instance: str
    launch: Launch
    arrays: Mapping[str, tuple[str, str, str]]
    result: str

    @property
    def promised(self) -> str:
        """What its name says that it computes; "" where it says nothing that is known."""
        return next((what for pattern, what in _NAMES.items() if re.search(pattern, self.kernel.name, re.IGNORECASE)), "")

    @property
    def is_plain(self) -> bool:
        """Whether what its name promises is what it must compute."""
        of_weights = re.search(r"[*/]", re.sub(r"\[[^\]]*\]|[^;]*\bblock(?:Idx|Dim)\b[^;]*;", "", self.kernel.body))
        is_variant = _VARIANT.search(self.kernel.name) or (self.promised == "stencil" and of_weights)
        return self.promised in _PLAIN and not is_variant

    def judged(self, seconds: int) -> list[tuple[tuple[int, ...], list[Finding]]]:
        """The shapes, and what is found on each. EmulationError if it does not compile."""
        with new_folder() as folder:
            program = Program(self.file, self.kernel, of_arrays(self.file, self.kernel, self.instance), folder / "program")
            judged: list[tuple[tuple[int, ...], list[Finding]]] = []
            for sizes in self._shapes():
                judged.append((sizes, self._found(sizes, seconds, program)))
                if any(each.code == "no-end" for each in judged[-1][1]):
                    break  # each other shape would take as long
            return judged

    def _shapes(self) -> list[tuple[int, ...]]:
        names = [each.name for each in self.kernel.parameters if each.is_number and not _OF_BINS.search(each.name)]
        if len(names) > 1:
            return [(64, 96), (37, 50), (2, 3), (190, 200)]
        is_strided = names and re.search(rf"\* *{names[0]}\b|\b{names[0]} *\*", self.kernel.body)
        if is_strided and re.search(r"(threadIdx|blockIdx)\.y", self.kernel.body):  # rows of a square matrix
            return [(edge, edge) for edge in (64, 37, 3, 190)]
        (many, *_), (threads, *_), _ = self.launch.at({**self.file.constants, "n": 1 << 16, "m": 1 << 16})
        (few, *_), *_ = self.launch.at({**self.file.constants, "n": 1, "m": 1})
        if many == few and "gridDim" not in self.kernel.body:  # there are no more threads for more elements
            return [(many * threads,), (many * threads - 3,), (3,)]
        return [(4 * threads,), (4 * threads - 27,), (3,), (40_001,)]

    def _of_rows(self) -> str:
        """The size that is the number of rows: by its name, else the first by which no index of an input is multiplied."""
        names = [each.name for each in self.kernel.parameters if each.is_number]
        inputs = [name for name, (_, begins, _) in self.arrays.items() if begins == "values"]
        read = " ".join(index for name in inputs for index in indices_of(name, self.kernel.body))
        others = (name for name in names if not re.search(rf"\* *{name}\b|\b{name} *\*", read))
        return next(filter(_ROWS.fullmatch, names), next(others, ""))

    def _found(self, sizes: tuple[int, ...], seconds: int, program: Program) -> list[Finding]:
        """What is found on arrays of `sizes`: rows and columns, or the number of elements."""
        rows, columns = (1, *sizes)[-2:]
        launch = self.launch.at({**self.file.constants, "n": sizes[0], "m": columns})
        of_length = {"one": 1, "blocks": launch[0][0], "bins": _BINS, "all": rows * columns}
        begun: dict[str, np.ndarray] = {}
        arrays, random = [], np.random.default_rng(len(self.arrays))
        for name, (kind, begins, length) in self.arrays.items():
            content = np.full(of_length[length] * np.dtype(kind).itemsize, _UNWRITTEN * (begins == "unwritten"), "u1").view(kind)
            if begins == "values":
                is_signed = content.dtype.kind != "u" and self.promised != "histogram"
                drawn = random.integers(19, size=len(content)) - 9 * is_signed
                content = begun[name] = drawn.astype(kind)
            arrays.append((content, True))
        of_rows, numbers = self._of_rows() if len(sizes) > 1 else "", []
        for each in (each for each in self.kernel.parameters if not each.is_pointer):
            size = _BINS if _OF_BINS.search(each.name) else rows if each.name == of_rows else columns
            numbers.append(size if each.is_number else _SCALE)
        places = [(name, 0, len(content)) for name, (content, _) in zip(self.arrays, arrays, strict=True)]
        looked, ended = program.ran(launch, arrays, numbers, places, seconds, f"{seconds} s, which --stall sets")
        found = without_repetition(looked.findings)
        if found or not ended:
            return found or [Finding("it ended without a result", "kernel-crashed")]
        return list(self._compared(sizes, begun, ended[0]["ended"][list(self.arrays).index(self.result)]))

    def _compared(self, sizes: tuple[int, ...], begun: Mapping[str, np.ndarray], ended: np.ndarray) -> Iterator[Finding]:
        radius = next((value for name, value in self.file.constants.items() if re.match(r"R$|rad", name, re.IGNORECASE)), 1)
        inputs = sorted(begun, key=lambda name: name == self.result)  # x before the y that becomes the result
        made = dict(_computed([begun[name].astype("f8") for name in inputs], sizes, radius, len(ended)))
        if self.arrays[self.result][2] == "blocks":  # each block's part
            ended = ended.astype("f8").sum(keepdims=True)
        elif self.arrays[self.result][1] == "unwritten":
            never = np.flatnonzero(ended.view(f"V{ended.itemsize}") == np.void(bytes([_UNWRITTEN]) * ended.itemsize))
            if len(never) > (2 * radius if self.promised == "stencil" else 0) and self.is_plain:
                text = f"{len(never)} of {self.result}'s {len(ended)} elements never written, the first {self.result}[{never[0]}]"
                yield Finding(f"{text}{self._stored()}", "never-written")
                return
        right = made.get(self.promised)
        if right is None or len(right) != len(ended) or _same(ended, right) or not self.is_plain:
            return
        also = next((f"; it is {what}" for what, each in made.items() if _same(ended, each)), "")
        wrong = np.flatnonzero((ended != right) & np.isfinite(right))
        text = f"{len(wrong)} of {len(ended)} elements are not the {self.promised} that the name promises, the first "
        text += f"{self.result}[{wrong[0]}]: {ended[wrong[0]]:g} instead of {right[wrong[0]]:g}{also}{self._stored()}"
        yield Finding(text, "wrong-elements")

    def _stored(self) -> str:
        lines = enumerate(self.file.lines[self.kernel.line - 1 :], self.kernel.line)
        return next((f"; line {number} stores to {self.result}" for number, line in lines if is_written(self.result, line)), "")


def _computed(inputs: list[np.ndarray], sizes: tuple[int, ...], radius: int, length: int) -> Iterator[tuple[str, np.ndarray]]:
    """What a first kernel may compute of these inputs, by name; NaN where any value may be."""
    if not inputs:
        return
    x, y = inputs[0], inputs[-1]
    yield from (("sum", x.sum(keepdims=True)), ("copy", x), ("a·x", _SCALE * x), ("max(x, 0)", np.maximum(x, 0)))
    if len(x) == len(y):
        yield from (("dot product", np.array([x @ y])), ("x + y", x + y), ("x − y", x - y), ("a·x + y", _SCALE * x + y))
    if x.min() >= 0:
        yield "histogram", np.bincount(x.astype(int), minlength=length).astype(float)
    yield from (("inclusive scan", np.cumsum(x)), ("exclusive scan", np.cumsum(x) - x))
    if len(sizes) > 1:
        yield "transpose", x.reshape(sizes).T.ravel()
    if len(x) > 2 * radius:
        window = np.convolve(x, np.ones(2 * radius + 1), "same")
        window[:radius] = window[len(x) - radius :] = np.nan  # kernels differ in what they make of the ends
        yield "stencil", window


def _same(ended: np.ndarray, made: np.ndarray) -> bool:
    return len(ended) == len(made) and bool(((ended == made) | np.isnan(made)).all())


def first_kernel(file: StudentFile, kernel: StudentKernel, instance: str, flags: Mapping[str, str]) -> FirstKernel | None:
    """The kernel, where its parameters are arrays, sizes and numbers and it multiplies no matrices; else None. UsageError where
    it writes to no array."""
    arrays = [each for each in kernel.parameters if each.is_pointer]
    numbers = [each for each in kernel.parameters if each.is_number]
    others = [each for each in kernel.parameters if not each.is_pointer and each not in numbers and each.type not in _TYPES]
    indices = {index for each in arrays for index in indices_of(each.name, kernel.body)}
    is_product = len(arrays) == 3 and (not indices or (len(indices) > 1 and any(set("*(") & set(index) for index in indices)))
    if others or not arrays or len(numbers) not in (1, 2) or is_product or not {each.type for each in arrays} <= _TYPES.keys():
        return None
    roles = {each.name: (_TYPES[each.type], *_role(each.name, kernel.body)) for each in arrays}
    result = next((name for name in roles if _writes(name, kernel.body)), "")
    if not result:
        raise UsageError(f"{file.path.name}, line {kernel.line}: {kernel} writes to none of its arrays", code="lab-parameters")
    return FirstKernel(file, kernel, instance, launch_of_arrays(file, kernel, flags), roles, result)


def _writes(name: str, body: str) -> bool:
    is_pointed_to = re.search(rf"(?:^|[;{{}})])\s*\*\s*{name}\s*(?:[-+*/]?=(?!=)|\+\+)", body)
    return is_written(name, body) or bool(is_pointed_to or re.search(rf"\batomic\w+\s*\(\s*&?\s*\(?\s*{name}\b", body))


def _role(name: str, body: str) -> tuple[str, str]:
    """With what an array begins, and how long it is."""
    indices = {each.replace(" ", "") for each in indices_of(name, body)}
    atomic = re.search(rf"\batomic\w+\s*\(\s*&?\s*\(?\s*{name}\b", body) is not None
    by_value = any("[" in each for each in indices) or (atomic and "threadIdx.x" in indices)
    length = "bins" if by_value else "all"
    if indices <= {"0"}:
        length = "one"
    elif indices <= {"blockIdx.x", "bid"}:
        length = "blocks"
    stores = len(re.findall(rf"(?<![\w.]){name}\s*\[[^;=]*?\]\s*=(?!=)", body))
    if not _writes(name, body):
        return "values", length
    return ("zeros" if atomic or length != "all" else "values" if len(indices_of(name, body)) > stores else "unwritten"), length
