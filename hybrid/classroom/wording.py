# SPDX-License-Identifier: MIT
"""Phrases for sentences about accesses to memory, and about the threads that make them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def race_told(accesses: Sequence[tuple[int, bool]], what: str, *, within_block: bool) -> str:
    """A sentence about a data race. `accesses`: the line of each, and whether it writes; `what`: the element; `within_block`: the
    threads are in one block, so a barrier would order them."""
    lines: dict[int, str] = {}
    for line, writes in accesses:
        lines[line] = "writes" if writes or lines.get(line) == "writes" else "reads"
    who = " and ".join(f"line {line} {does}" for line, does in sorted(lines.items()))
    if within_block:
        return f"data race: {who} {what}, in different threads of a block, and no __syncthreads() stands between them"
    return f"data race: {who} {what} in different threads"


def index_text(event: dict[str, Any], what: str) -> str:
    """The index of the event's block or thread, as: block (0, 1)."""
    index = event[what]
    return f"{what} ({', '.join(map(str, index if index[2] else index[:2]))})"


def thread_text(event: dict[str, Any]) -> str:
    """The event's block and thread, as: block (0, 1), thread (3, 0)."""
    return f"{index_text(event, 'block')}, {index_text(event, 'thread')}"


def thread_of_block(number: int, block_size: Sequence[int]) -> list[int]:
    """threadIdx of the thread with this number in a block."""
    x, y, _ = block_size
    return [number % x, number // x % y, number // (x * y)]


def index_told(source: str, column: int, index: int, of_type: str) -> str:
    """What is wrong with an index, as: As[ty][k] with k = 16: 0 to 15 are there.

    `source`: the line; `column`: that of the bracket that closes the index, where the compiler tells it; `of_type`: the array's.
    """
    extent = re.search(r"\[(\d+)\]", of_type)
    there = f"0 to {int(extent[1]) - 1} are there" if extent else f"its type is {of_type}"
    if source[column - 1 : column] == "]":
        opening = _opening(source, column - 1)
        first = opening
        while source[:first].rstrip().endswith("]"):
            first = _opening(source, len(source[:first].rstrip()) - 1)
        name = re.search(r"[\w.]+\s*$", source[:first])
        if name:
            text = source[opening + 1 : column - 1].strip()
            value = "" if text == str(index) else f" with {text} = {index}"
            return f"{source[name.start() : column].strip()}{value}: {there}"
    return f"index {index}: {there}"


def _opening(source: str, closing: int) -> int:
    """The position of the bracket that the one at `closing` closes."""
    depth = 0
    for place in range(closing, -1, -1):
        depth += (source[place] == "]") - (source[place] == "[")
        if not depth:
            return place
    return 0
