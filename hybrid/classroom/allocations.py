# SPDX-License-Identifier: MIT
"""The names of a program's device arrays: the variables that it gives to cudaMalloc."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hybrid.classroom.c_text import blanked
from hybrid.core.text import counted

_CALL = re.compile(
    r"\bcudaMalloc(?:Managed|Pitch)?\s*\(\s*(?:\((?:[^()]|\([^()]*\))*\)\s*)*?\(?\s*&?\s*([\w.\->\[\]]+)\s*\)?\s*[,)]"
)
_ITEM = re.compile(r"sizeof\s*\(?\s*(\w+)")
_BYTES = {"double": 8, "long": 8, "size_t": 8, "char": 1, "bool": 1, "short": 2}
_USUAL = 4  # bytes of an element


class Allocations:
    """What device arrays are called in messages: the variables that a program gives to cudaMalloc. Each has a number, which
    the runtime gave it."""

    def __init__(self, events: Iterable[dict[str, Any]], sources: Mapping[str, Sequence[str]]) -> None:
        self._of = {each["number"]: each for each in events if each["event"] == "allocation"}
        calls: dict[tuple[str, int], list[tuple[str, int]]] = {}  # by file and line: the arrays' names, and bytes of an element
        for file, lines in sources.items():
            plain = blanked("\n".join(lines))
            for call in _CALL.finditer(plain):
                end = plain.find(";", call.end())
                item = _ITEM.search(plain, call.end(), end if end >= 0 else len(plain))
                named = call[1], _BYTES.get(item[1], _USUAL) if item else _USUAL
                first, last = (plain.count("\n", 0, place) + 1 for place in (call.start(), call.end()))
                for line in range(first, last + 1):
                    calls.setdefault((file, line), []).append(named)
        self._called: dict[int, tuple[str, int]] = {}
        so_far: dict[tuple[str, int], int] = {}
        for number, event in self._of.items():
            place = event["file"], event["line"]
            if of_line := calls.get(place):  # several calls in a line are taken in turn
                self._called[number] = of_line[so_far.get(place, 0) % len(of_line)]
                so_far[place] = so_far.get(place, 0) + 1

    def _call(self, number: int) -> tuple[str, int]:
        return self._called.get(number, ("", _USUAL))

    def name(self, number: int) -> str:
        """The name of an array."""
        name = self._call(number)[0]
        if name:
            return name
        return f"the array of line {self._of[number]['line']}" if number in self._of else "an array"

    def named(self, number: int, *, with_line: bool) -> str:
        """The name of an array, maybe with the line that allocates it."""
        is_known = number in self._of and self._call(number)[0]
        return (
            f"{self.name(number)} (allocated in line {self._of[number]['line']})" if with_line and is_known else self.name(number)
        )

    def place(self, number: int) -> tuple[str, int]:
        """Where the array is allocated."""
        return self._of[number]["file"], self._of[number]["line"]

    def element(self, number: int, offset: int, item: int) -> str:
        """The name of the element at this byte offset. `item`: bytes of an element; 0: the array's cudaMalloc tells."""
        return f"{self.name(number)}[{offset // (item or self._call(number)[1])}]"

    def size(self, number: int, item: int) -> str:
        """A clause that says how many elements the array has."""
        event = self._of.get(number)
        if event is None:
            return "it has fewer elements"
        return f"it has {counted(event['bytes'] // item, 'element')} (allocated in line {event['line']})"

    def by_line(self, numbers: Iterable[int]) -> dict[int, list[str]]:
        """The names of these arrays, by the line that allocates them."""
        found: dict[int, list[str]] = {}
        for number in numbers:
            if number in self._of:
                found.setdefault(self._of[number]["line"], []).append(self.name(number))
        return found
