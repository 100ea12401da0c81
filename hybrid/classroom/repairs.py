# SPDX-License-Identifier: MIT
"""Small changes of a wrong kernel, such as another guard, a wider type or exchanged indices. One that mends it tells the cause.
`hybrid.classroom.examination` compiles them together and runs them where the kernel is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hybrid.classroom.cuda_text import Function, after_bracket, blanked, edited, functions_in, origin
from hybrid.classroom.student_file import StudentFile, StudentKernel
from hybrid.core.problem import record

MOST = 48  # changes that are tried
_NARROW = r"(?:(?:unsigned|signed)\s+)?(?:char|short)(?:\s+int)?|u?int(?:8|16)_t"
_DECLARED = re.compile(
    rf"(?<![\w:<(])(?:const\s+)?\b({_NARROW}|(?:unsigned\s+)?int|unsigned|half|__half|float)\s+(\w[^;(){{}}]*(?:[({{][^;]*)?);"
)
_ARRAYS = re.compile(r"\b(?:float|double|int|half|__half)\s+([^;()]*)")
_REFERENCE = re.compile(r"(?<![\w.])(\w+)\s*\[([^\[\]]+)\](?:\s*\[([^\[\]]+)\])?")
_ZERO = re.compile(r"\b(\w+)\s*=\s*0(?:\.0?)?f?\s*;")
_LOOP, _VARIABLE = re.compile(r"\bfor\s*\([^{}]*\)\s*\{"), re.compile(r"\bfor\s*\(\s*(?:(?:unsigned|int|size_t)\s+)+(\w+)\s*=")
_CONDITION = re.compile(r"\b(?:if|while)\s*(\()|\bfor\s*\([^;{}]*(;)|=\s*(\()(?=[^;]*\?)")
_ASSIGNED = re.compile(r"\b\w+\.([xyzw])\s*[-+*/]?=(?!=)([^;]*);")
_COMPONENT = re.compile(r"\b(?!(?:thread|block)(?:Idx|Dim)\b)(\w+(?:\[[^\]]*\])?)\.([xyzw])\b")
_OPPOSITES = {"||": "&&", "&&": "||", ">": ">=", "<=": "<", ">=": ">", "<": "<="}
_OPERATOR = re.compile(r"\|\||&&|(?<![<>\-])[<>]=?(?![<>]|=?\s*0\b)")
_VALUE = r"(?<=[;{}\n])[ \t]*(?:float|double|int|half|__half)\s+"
_LIKELY = (  # what is replaced, by what, and the cause
    (rf"{_VALUE}(\w+)(?=\s*;.*\b\1\s*(?:\+=|=\s*\1\b))", r"\g<0> = 0", "{1} has no value where the sum begins"),
    (rf"{_VALUE}(\w+)\s*\[[^;]*\](?=;.*\b\1\s*\[[^;]*\]\s*\+=)", r"\g<0> = {}", "{1} has no values where the sums begin"),
    (r"(?<![\w.])(SIZE)\s*/\s*([\w.]+)", r"((\1 + \2 - 1) / \2)", "{0} is rounded down"),
    (r"([\w.]+)\s*\+\s*([\w.]+\s*<<\s*\w+)", r"(\1 + (\2))", "+ comes before << in {0}"),
    (r"\b(block(?:Idx|Dim))\.([xy])(\s*\*\s*block(?:Idx|Dim))\.(?!\2)[xy]", r"\1.\2\3.\2", "x and y are mixed in {0}"),
    (r"(=\s*blockDim\.x)(?=\s*;[^;)]*>\s*0\s*;[^;)]*(?:>>=\s*1|/=\s*2)\b)", r"\1 / 2", "the first step is a whole block"),
    (r"\((\w+)\s*[-+]\s*1\)", r"(\1)", "{0} is one off"),
    (r"(?<![\w.])(\d+)\s*/\s*(\d+)\b(?![\w.])", r"\1.0f / \2", "{0} is a quotient of whole numbers"),
    (r"(\w+\s*\[[^;]*?\])\s*\+\s*(\w+\s*\[)", r"\1 * \2", "{0} adds factors"),
)


@record
class Repair:
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


def repairs_of(file: StudentFile, kernel: StudentKernel, element: str, result: str = "C") -> Iterator[Repair]:
    """Changes of the kernel, the most plausible first. `element`: the C type of the matrices; "" for any."""
    function = next((each for each in functions_in(file.compiled) if each.name == kernel.name), None)
    if function is None:
        return
    plain = blanked(file.compiled)
    matrices = "|".join(each.name for each in kernel.parameters if each.is_pointer or each.type in file.structs)
    names = [each.name for each in kernel.parameters if each.is_number]
    structs = [each.name for each in kernel.parameters if each.type in file.structs]
    for make in (
        _shared(plain, function),
        *(_wider(plain, function, matrices, element), _from_0_again(plain, function), _other_components(plain, function)),
        *(_likely(plain, function, names), _other_conditions(plain, function)),
        *(_other_sizes(plain, function, names, structs), _other_indices(plain, function)),
    ):
        for begin, end, instead, what in make:
            _, line = origin(file.compiled, begin, file.path.name)
            text = edited(file.compiled, [(begin, end, instead)])
            is_of_narrow = re.fullmatch(_NARROW, plain[begin:end]) is not None
            yield Repair(line, f"line {line}: {what} {result} would be right", text, is_of_narrow)


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
        if element and kind != element and (has_elements or is_sum) and (kind != "float" or element == "double"):
            yield *found.span(1), element, f"{of_type} rounds: with {element} in its place"


def _shared(plain: str, function: Function) -> Iterator[_Change]:
    """The kernel's arrays without __shared__ as shared ones."""
    of_threads = [*re.compile(rf"{_VALUE}\w+\s*\[[^;=]*;").finditer(plain, function.opening, function.end)]
    if of_threads and "__syncthreads" in plain[function.opening : function.end]:
        begin, end = of_threads[0].start(), of_threads[-1].end()
        names = [re.split(r"\W+", each[0].strip())[1] for each in of_threads]
        text = re.sub(rf"{_VALUE}\w+\s*\[[^;=]*;", r"__shared__ \g<0>", plain[begin - 1 : end])[1:]
        yield begin, end, text, f"each thread has {', '.join(names)} of its own: with __shared__ before"


def _from_0_again(plain: str, function: Function) -> Iterator[_Change]:
    """Sums set to 0 in the loop after their declaration."""
    for found in _ZERO.finditer(plain, function.opening, function.end):
        loop = _LOOP.search(plain, found.end(), function.end)
        if loop and re.search(rf"\b{found[1]}\s*\+=", plain[loop.end() : function.end]):
            again = f"{found[1]} begins with 0 before the loop, and not in each of its iterations: so"
            yield found.start(), loop.end(), f"{plain[found.start() : loop.end()]} {found[1]} = 0;", again


def _other_components(plain: str, function: Function) -> Iterator[_Change]:
    """Components of vectors as in what is assigned; and the sum of a vector's sums in place of one."""
    for found in _ASSIGNED.finditer(plain, function.opening, function.end):
        for each in _COMPONENT.finditer(plain, found.start(2), found.end(2)):
            if each[2] != found[1]:
                cause = f"{each[0]} is not the component meant here: with {each[1]}.{found[1]} in its place"
                yield *each.span(2), found[1], cause
    body = plain[function.opening : function.end]
    for name in dict.fromkeys(re.findall(r"\b(\w+)\.[xyzw]\s*\+=", body)):
        sums = [f"{name}.{each}" for each in dict.fromkeys(re.findall(rf"\b{name}\.([xyzw])\s*\+=", body))]
        used = [*re.compile(rf"\b{name}\.[xyzw]\b(?!\s*[-+*/]?=(?!=))").finditer(plain, function.opening, function.end)]
        if len(used) == 1 and len(sums) > 1:
            others, instead = ", ".join(each for each in sums if each != used[0][0]), f"({' + '.join(sums)})"
            yield *used[0].span(), instead, f"nothing uses {others}: with {instead} in place of {used[0][0]}"


def _likely(plain: str, function: Function, names: Sequence[str]) -> Iterator[_Change]:
    """The changes of `_LIKELY`. `names`: of sizes."""
    for pattern, instead, cause in _LIKELY:
        of_names = re.compile(pattern.replace("SIZE", "|".join(names) or "(?!)"), re.DOTALL)
        for found in of_names.finditer(plain, function.opening, function.end):
            new = found.expand(instead)
            yield *found.span(), new, f"{cause.format(found[0].strip(), found[1])}: with {new.strip(' ;')} in its place"


def _other_conditions(plain: str, function: Function) -> Iterator[_Change]:
    """Conditions with another logical operator or comparison."""
    for found in _CONDITION.finditer(plain, function.opening, function.end):
        begin = next(place for place in map(found.end, (1, 2, 3)) if place >= 0)
        end = plain.index(";", begin) if found[2] else after_bracket(plain, begin - 1) - 1
        condition = " ".join(plain[begin:end].split())
        for operator in dict.fromkeys(_OPERATOR.findall(condition)):
            other = _OPERATOR.sub(lambda each, of=operator: _OPPOSITES[of] if each[0] == of else each[0], condition)  # type: ignore[misc]
            yield begin, end, other, f"{operator} is wrong in {condition}: with {other} in its place"


def _other_sizes(plain: str, function: Function, names: Sequence[str], structs: Sequence[str]) -> Iterator[_Change]:
    """Sizes in place of others."""
    pattern = rf"(?<![\w.])(?:({'|'.join(names) or '(?!)'})\b|({'|'.join(structs) or '(?!)'})(\.[whrc]\w*))"
    for found in re.compile(pattern).finditer(plain, function.opening, function.end):
        others = [f"({found[1]} * {found[1]})"] if names == [found[1]] else names if found[1] else structs
        is_index = re.search(r"\[[^\]\n]*$", plain[function.opening : found.start()])
        for other in (each for each in others if each not in found.groups() and not is_index):
            new = f"{other}{found[3] or ''}"
            yield *found.span(), new, f"{found[0]} is not the size meant here: with {new} in its place"


def _other_indices(plain: str, function: Function) -> Iterator[_Change]:
    """References to the kernel's arrays with exchanged indices or a loop's variable as an index."""
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
