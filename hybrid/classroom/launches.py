# SPDX-License-Identifier: MIT
"""Rewrites the text of a whole CUDA program for a C++ compiler: launches kernel<<<...>>>(...) become calls. Lines keep their
numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations

from hybrid.classroom.c_text import blanked, with_device_variables
from hybrid.classroom.student_kernel import kernels_of
from hybrid.core.problem import record
from hybrid.errors import UsageError

_OPENING, _CLOSING = "([{", ")]}"


@record
class LaunchText:
    """The place of a launch and of its parts, as positions in the text."""

    begin: int
    opening: int  # <<<
    closing: int  # >>>
    arguments: int  # the parenthesis after it
    end: int

    def kernel(self, text: str) -> str:
        """The kernel's name, with a template's arguments."""
        return " ".join(text[self.begin : self.opening].split())


def launches_in(text: str, name: str) -> Iterator[LaunchText]:
    """The launches, in the order of the text. UsageError where one is not complete. `name`: of the file."""
    plain, place = blanked(text), 0
    while (opening := plain.find("<<<", place)) >= 0:
        place = opening + 3
        if re.search(r"\boperator\s*$", plain[:opening]):
            continue
        closing = _closing(plain, place)
        found = re.compile(r"\s*\(").match(plain, closing + 3) if closing >= 0 else None
        end = _after_matching(plain, found.end() - 1) if found else -1
        begin = _begin_of_name(plain, opening)
        if found is None or end < 0 or not plain[begin:opening].strip():
            line = plain.count("\n", 0, opening) + 1
            raise UsageError(
                f"{name}, line {line}: after <<< a launch goes on as in kernel<<<grid, block>>>(arguments)", code="lab-launch"
            )
        yield LaunchText(begin, opening, closing, found.end() - 1, end)
        place = end


def rewritten(text: str, name: str, templates: Mapping[str, int]) -> str:
    """The text for a C++ compiler. `name`: of the file; `templates`: how many parameters each kernel has that is a template."""
    parts, place = [], 0
    for launch in launches_in(text, name):
        kernel = launch.kernel(text)
        called, _, given = kernel.partition("<")
        quoted = kernel.replace("\\", "").replace('"', "")
        configuration = text[launch.opening + 3 : launch.closing]
        arguments = text[launch.arguments + 1 : launch.end - 1]
        comma = ", " if blanked(arguments).strip() else ""
        parts += [text[place : launch.begin], f'cuda_on_cpu::Launched("{quoted}", {configuration})']
        parts.append("\n" * (text.count("\n", launch.begin, launch.opening) + text.count("\n", launch.closing, launch.arguments)))
        if templates.get(called.strip(), 0) > (_top_level_commas(given.rpartition(">")[0]) + 1 if given else 0):
            body = f"[](auto&... of_kernel) {{ {kernel}(of_kernel...); }}"
            parts.append(f".call_template({body}{comma}{arguments})")
        else:
            parts.append(f".call({kernel}{comma}{arguments})")
        place = launch.end
    return with_device_variables("".join([*parts, text[place:]]))


def exchanged(text: str, kernel: str) -> str:
    """Which arguments the only launch of this kernel in a text exchanges, by their names: dB for a and dA for b; "" for none."""
    plain, name = blanked(text), kernel.partition("<")[0].strip()
    launches = [each for each in launches_in(text, "") if each.kernel(text).partition("<")[0].strip() == name]
    parameters = [[each.name for each in found.parameters] for found in kernels_of(text) if found.name == name]
    if len(launches) != 1 or len(parameters) != 1:
        return ""
    given = [part.strip() for part in plain[launches[0].arguments + 1 : launches[0].end - 1].split(",")]
    of_given, wanted = ([_bare(each) for each in names] for names in (given, parameters[0]))
    for one, other in combinations(range(len(wanted)), 2) if len(given) == len(wanted) else ():
        if of_given[one] == wanted[other] != wanted[one] == of_given[other]:
            return f"{given[one]} for {parameters[0][one]} and {given[other]} for {parameters[0][other]}"
    return ""


def _bare(name: str) -> str:
    """A variable's name without what says that it is of the device: a for dA, d_a and a_d, m for Md."""
    return re.sub(r"^(d|dev|device|gpu)(_|(?=[A-Z]))|(?<=\w)_?(d|dev|device|gpu)$", "", name).lower()


def _closing(plain: str, place: int) -> int:
    """The position of the >>> that ends a configuration; -1 where there is none."""
    depth = 0
    while place < len(plain):
        letter = plain[place]
        if not depth and plain.startswith(">>>", place):
            return place
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if depth < 0 or (letter == ";" and not depth):
            return -1
        place += 1
    return -1


def _after_matching(plain: str, opening: int) -> int:
    """The position after the bracket that closes the one at `opening`; -1 where there is none."""
    depth = 0
    for place in range(opening, len(plain)):
        depth += (plain[place] in _OPENING) - (plain[place] in _CLOSING)
        if not depth:
            return place + 1
    return -1


def _begin_of_name(plain: str, opening: int) -> int:
    """Where the kernel's name before <<< begins; it may have namespaces and a template's arguments."""
    place = len(plain[:opening].rstrip())
    if plain[:place].endswith(">"):
        depth = parentheses = 0
        while place > 0:
            place -= 1
            letter = plain[place]
            parentheses += (letter in _CLOSING) - (letter in _OPENING)
            depth += ((letter == ">") - (letter == "<")) if not parentheses else 0
            if not depth:
                break
    name = re.search(r"(?:::\s*)?(?:\w+\s*::\s*)*\w+\s*$", plain[:place])
    return name.start() if name else opening


def _top_level_commas(text: str) -> int:
    depth = commas = 0
    for letter in text:
        depth += (letter in "([{<") - (letter in ")]}>")
        commas += letter == "," and not depth
    return commas
