# SPDX-License-Identifier: MIT
"""Makes the steps of a lecture's picture from the accesses of a launch: what the threads of a block load and store together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hybrid.classroom.arithmetic import evaluated
from hybrid.classroom.case import Case
from hybrid.classroom.examination import Trials
from hybrid.core.problem import record
from hybrid.emulation.trace import Access
from hybrid.errors import UsageError

_TILE = re.compile(
    r"^([ \t]*(?:#[ \t]*define[ \t]+|(?:static\s+)?(?:const|constexpr)\s+(?:unsigned\s+)?int\s+)"
    r"\w*(?:TILE|BLOCK)\w*[ \t]*=?[ \t]*)(\d+)",
    re.MULTILINE | re.IGNORECASE,
)
MOST_PRODUCTS = 1 << 12  # multiplications: more are no picture


@record
class Array:
    """A matrix, or a shared variable of a block. The last dimension is its columns; all others are its rows."""

    name: str
    rows: int
    columns: int
    is_shared: bool


@record
class Touch:
    """A thread's load or store of one element."""

    thread: int
    array: int  # its number in the picture
    row: int
    column: int
    writes: bool


@record
class Step:
    """What the threads of a block do when they execute a line once, as if they ran in step."""

    barriers: int  # that they have passed
    line: int
    touches: tuple[Touch, ...]


@record
class Picture:
    """All blocks' steps. The first three arrays are A, B and C."""

    kernel: str
    source: tuple[str, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arrays: tuple[Array, ...]
    steps: Mapping[tuple[int, int], tuple[Step, ...]]  # by block

    def thread(self, number: int) -> tuple[int, int]:
        """threadIdx.x and threadIdx.y of a thread of a block."""
        return number % self.block[0], number // self.block[0]

    def walk(self, array: int, block: tuple[int, int] = (0, 0), thread: int = 0) -> list[int]:
        """The elements of a matrix that a thread loads, in its order. They are numbered row by row, as in memory."""
        columns = self.arrays[array].columns
        return [
            touch.row * columns + touch.column
            for step in self.steps.get(block, ())
            for touch in step.touches
            if (touch.thread, touch.array, touch.writes) == (thread, array, False)
        ]


def tile_in(texts: Mapping[Path, str]) -> int | None:
    """The width of a file's tiles, if it and its own headers have exactly one constant whose name has TILE or BLOCK; else
    None."""
    found = [int(width) for text in texts.values() for _, width in _TILE.findall(text)]
    return found[0] if len(found) == 1 else None


def with_tile(texts: Mapping[Path, str], tile: int) -> dict[Path, str]:
    """The texts with another width of the tiles. UsageError unless they have exactly one constant whose name has TILE or
    BLOCK."""
    changed = {path: _TILE.subn(rf"\g<1>{tile}", text) for path, text in texts.items()}
    count = sum(each for _, each in changed.values())
    if count != 1:
        has = f"{count} such constants, and which is meant cannot be told" if count else "none"
        raise UsageError(
            f"--tile changes the constant of the file that is called TILE… or BLOCK…: it has {has}", code="lab-shown"
        )
    return {path: text for path, (text, _) in changed.items()}


def picture(trials: Trials, sizes: tuple[int, int, int]) -> Picture:
    """The picture of a launch on this shape. UsageError if that is too large, EmulationError if the kernel does not compile or is
    stopped."""
    n, l, m = sizes
    if n * l * m > MOST_PRODUCTS:
        raise UsageError(
            f"{n}×{l}×{m} are {n * l * m} multiplications: at most {MOST_PRODUCTS} can be shown, such as --width 16",
            code="lab-shown",
        )
    if any(len(extents) > 2 for extents in (trials.launch.grid, trials.launch.block)):
        raise UsageError(
            f"a picture shows blocks and threads by x and y, and this launch has a z: {trials.launch}", code="lab-shown"
        )
    case, accesses = trials.traced(sizes)
    arrays = _arrays(trials, case, accesses)
    number = {array.name: index for index, array in enumerate(arrays)}
    item = np.dtype(trials.meaning.dtype).itemsize
    by_block: dict[tuple[int, int], list[Access]] = {}
    for access in accesses:
        by_block.setdefault(access.block, []).append(access)
    steps = {}
    for block, of_block in sorted(by_block.items(), key=lambda each: each[0][::-1]):
        runs = _runs(of_block)
        steps[block] = tuple(
            Step(barriers, line, tuple(touch for access in run for touch in _touches(access, arrays, number, item)))
            for (barriers, line), run in runs
        )
    return Picture(str(trials.kernel), tuple(trials.file.text.rstrip("\n").split("\n")), case.grid, case.block, arrays, steps)


def _runs(accesses: Sequence[Access]) -> list[tuple[tuple[int, int], list[Access]]]:
    """The executions of lines by a block's threads, each with its barriers and line, and its accesses.

    A thread executes a line anew if one of the line's instructions comes again, or if another line came between. The n-th
    execution of a line by all threads is one run. Runs are in the order in which a thread first makes them.
    """
    now: dict[int, tuple[int, int, set[int]]] = {}  # by thread: barriers and line of its last access, and the instructions since
    counts: dict[tuple[int, int, int], int] = {}  # by thread, barriers and line
    position: dict[int, int] = {}  # by thread: how many runs it has begun
    runs: dict[tuple[int, int, int], tuple[int, list[Access]]] = {}
    for access in accesses:
        barriers, line, seen = now.get(access.thread, (-1, 0, set()))
        key = (access.thread, access.barriers, access.line)
        if (barriers, line) != key[1:] or access.instruction in seen:
            seen = set()
            counts[key] = counts.get(key, 0) + 1
            position[access.thread] = position.get(access.thread, 0) + 1
        now[access.thread] = (access.barriers, access.line, seen | {access.instruction})
        run = (access.barriers, access.line, counts[key])
        first, of_run = runs.setdefault(run, (position[access.thread], []))
        of_run.append(access)
        runs[run] = (min(first, position[access.thread]), of_run)
    ordered = sorted(runs.items(), key=lambda each: (each[0][0], each[1][0], each[0][1]))
    return [((barriers, line), of_run) for (barriers, line, _), (_, of_run) in ordered]


def _touches(access: Access, arrays: Sequence[Array], number: Mapping[str, int], item: int) -> list[Touch]:
    """The elements that an access touches: several for a vector load."""
    array = access.of if isinstance(access.of, int) else number[access.of]
    columns = arrays[array].columns
    elements = range(access.byte // item, -(-(access.byte + access.bytes) // item))
    return [Touch(access.thread, array, element // columns, element % columns, access.writes) for element in elements]


def _arrays(trials: Trials, case: Case, accesses: Sequence[Access]) -> tuple[Array, ...]:
    (n, l, m), names = case.sizes, trials.meaning.names(trials.kernel)
    shapes = ((n, l), (l, m), (n, m))
    arrays = [Array(name, *shape, False) for name, shape in zip(names, shapes, strict=True)]
    item = np.dtype(trials.meaning.dtype).itemsize
    for name in dict.fromkeys(access.of for access in accesses if isinstance(access.of, str)):
        elements = 1 + max(access.byte for access in accesses if access.of == name) // item
        columns = _columns(trials, name) or elements
        arrays.append(Array(name, -(-elements // columns), columns, True))
    return tuple(arrays)


def _columns(trials: Trials, name: str) -> int:
    """The last dimension of a shared variable, as the kernel declares it; 0 where that is not known."""
    declared = re.search(rf"\b{re.escape(name)}\s*((?:\[[^\]]*\])+)", trials.kernel.body)
    if declared is None:
        return 0
    last = re.findall(r"\[([^\]]*)\]", declared[1])[-1]
    try:
        return evaluated(last, trials.file.constants)
    except UsageError:
        return 0
