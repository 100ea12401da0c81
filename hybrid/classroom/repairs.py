# SPDX-License-Identifier: MIT
"""Small changes of a wrong kernel, such as a wider type or exchanged indices. The one that mends the kernel tells the cause.
`hybrid.classroom.examination` compiles them together and runs them where the kernel is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hybrid.classroom.cuda_text import Function, blanked, edited, functions_in, origin
from hybrid.classroom.student_file import StudentFile, StudentKernel
from hybrid.core.problem import record

MOST = 24  # changes that are tried
_NARROW = r"(?:(?:unsigned|signed)\s+)?(?:char|short)(?:\s+int)?|u?int(?:8|16)_t"
_DECLARED = re.compile(
    rf"(?<![\w:<(])(?:const\s+)?\b({_NARROW}|(?:unsigned\s+)?int|unsigned|half|__half|float)\s+(\w[^;(){{}}]*(?:[({{][^;]*)?);"
)
_ARRAYS = re.compile(r"\b(?:float|double|int|half|__half)\s+([^;()]*)")
_REFERENCE = re.compile(r"(?<![\w.])(\w+)\s*\[([^\[\]]+)\](?:\s*\[([^\[\]]+)\])?")
_ZERO = re.compile(r"\b(\w+)\s*=\s*0(?:\.0?)?f?\s*;")
_LOOP, _VARIABLE = re.compile(r"\bfor\s*\([^{}]*\)\s*\{"), re.compile(r"\bfor\s*\(\s*(?:(?:unsigned|int|size_t)\s+)+(\w+)\s*=")
_ONE_OFF = re.compile(r"\((\w+)\s*[-+]\s*1\)")


@record
class Repair:
    """A change of the file."""

    line: int
    what: str  # a sentence about the cause
    text: str  # the changed text for the CPU
    is_of_narrow: bool  # it widens an integer of 8 or 16 bits

    def resembles(self, other: Repair) -> bool:
        """Whether both say the same of two places."""
        return self.what.split(": ")[1] == other.what.split(": ")[1]


def uses_narrow_integers(kernel: StudentKernel) -> bool:
    """Whether variables of 8 or 16 bits may overflow as indices."""
    return re.search(rf"(?<![\w<*])(?:{_NARROW})\s+\w+\s*[=;,]", kernel.indices) is not None


def repairs_of(file: StudentFile, kernel: StudentKernel, element: str) -> Iterator[Repair]:
    """Changes of the kernel, the most plausible first. `element`: the C type of the matrices."""
    function = next((each for each in functions_in(file.compiled) if each.name == kernel.name), None)
    if function is None:
        return
    plain = blanked(file.compiled)
    matrices = "|".join(each.name for each in kernel.parameters if each.is_pointer or each.type in file.structs)
    for make in (_wider(plain, function, matrices, element), _from_0_again(plain, function), _other_indices(plain, function)):
        for begin, end, instead, what in make:
            _, line = origin(file.compiled, begin, file.path.name)
            text = edited(file.compiled, [(begin, end, instead)])
            yield Repair(line, f"line {line}: {what} C would be right", text, re.fullmatch(_NARROW, plain[begin:end]) is not None)


_Change = tuple[int, int, str, str]  # where it begins and ends, what stands there then, and what is wrong


def _wider(plain: str, function: Function, matrices: str, element: str) -> Iterator[_Change]:
    """Declarations with int for narrower integers, and with the matrices' type for arrays, factors and sums."""
    for found in _DECLARED.finditer(plain, function.opening, function.end):
        kind, declared = found.groups()
        names = re.findall(r"(?:^|,)\s*(\w+)", re.sub(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]", "", declared))
        of_type = f"{', '.join(names)} of type {kind}"
        if re.fullmatch(_NARROW, kind):
            yield *found.span(1), "int", f"{of_type} is too narrow for its values: with int in its place"
        after = plain[found.end() : function.end]
        has_elements = "[" in declared.partition("=")[0] or re.search(rf"\b(?:{matrices})\s*(?:\.\w+\s*)?\[", declared)
        is_sum = any(re.search(rf"\b{name}\s*(?:\+=|=\s*[^;]*\b{name}\b)", after) for name in names)
        if kind != element and (has_elements or is_sum) and (kind != "float" or element == "double"):
            yield *found.span(1), element, f"{of_type} rounds: with {element} in its place"


def _from_0_again(plain: str, function: Function) -> Iterator[_Change]:
    """Sums set to 0 in the loop after their declaration."""
    for found in _ZERO.finditer(plain, function.opening, function.end):
        loop = _LOOP.search(plain, found.end(), function.end)
        if loop and re.search(rf"\b{found[1]}\s*\+=", plain[loop.end() : function.end]):
            again = f"{found[1]} begins with 0 before the loop, and not in each of its iterations: so"
            yield found.start(), loop.end(), f"{plain[found.start() : loop.end()]} {found[1]} = 0;", again


def _other_indices(plain: str, function: Function) -> Iterator[_Change]:
    """References to the kernel's arrays with exchanged indices or a loop's variable as an index; and indices that are one off."""
    body = plain[function.opening : function.end]
    arrays = {name for each in _ARRAYS.findall(body) for name in re.findall(r"(?:^|[,\]])\s*(\w+)\s*\[", each)}
    loops = [(found.start(), found[1]) for found in _VARIABLE.finditer(plain, function.opening, function.end)]
    for found in _REFERENCE.finditer(plain, function.opening, function.end):
        name, first, second = found.groups()
        before = plain[max(function.opening, found.start() - 40) : found.start()]
        if name not in arrays or re.search(r"\b(?:float|double|int|half|__half)\s[^;=(]*$", before):
            continue
        if second and first.strip() != second.strip():
            turned = f"{name}[{second}][{first}]"
            yield *found.span(), turned, f"row and column are exchanged: with {turned} in place of {found[0]}"
        for variable in [name for at, name in loops if at < found.start()][-2:]:
            for number in (2, 3) if second and variable not in (first, second) else (2,) * (variable != first):
                instead = f"{plain[found.start() : found.start(number)]}{variable}{plain[found.end(number) : found.end()]}"
                yield *found.span(), instead, f"the index {variable} is missing: with {instead} in place of {found[0]}"
    for found in _ONE_OFF.finditer(plain, function.opening, function.end):
        yield *found.span(), f"({found[1]})", f"{found[0]} is one off: with {found[1]} in its place"
