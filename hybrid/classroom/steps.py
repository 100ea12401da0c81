# SPDX-License-Identifier: MIT
"""The steps of a lecture's picture, from the accesses of a small launch: what the threads of a block load and store together; in
words, and as pages and pictures take them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybrid.classroom.arithmetic import evaluated_or_0
from hybrid.classroom.c_text import blanked
from hybrid.classroom.case import Case
from hybrid.classroom.examination import Trials
from hybrid.classroom.launch import launch_of
from hybrid.classroom.mistakes import Element, with_elements
from hybrid.classroom.student_file import StudentFile, parsed
from hybrid.core.problem import record
from hybrid.core.text import counted
from hybrid.emulation.trace import Access
from hybrid.errors import HybridError, UsageError
from hybrid.reporting.steps_page import Steps

_TILE = re.compile(
    r"^([ \t]*(?:#[ \t]*define[ \t]+|(?:static\s+)?(?:const|constexpr)\s+(?:unsigned\s+)?int\s+)"
    r"\w*(?:TILE|BLOCK)\w*[ \t]*=?[ \t]*)(\d+)",
    re.MULTILINE | re.IGNORECASE,
)
_MOST_PRODUCTS = 1 << 12  # multiplications: more are no picture
_SMALL, _LARGEST = 2, 16  # the width of tiles, where it can be chosen; the largest width of a square matrix
_MOST_THREADS, _MOST_WALK = 4, 8  # in words: threads that have a column; elements of a walk that are shown

Block = tuple[int, int]
Stored = tuple[Access, Element | None]  # an access, and the element of a matrix that it reads or stores


@record
class Array:
    """A matrix, or a shared variable of a block. The last dimension is its columns; all others are its rows."""

    name: str
    rows: int
    columns: int
    shared: bool


class Touch(NamedTuple):
    """A thread's load or store of one element."""

    thread: int
    array: int  # its number in the picture
    row: int
    column: int
    writes: bool
    stored: str = ""  # what a store leaves in shared memory, as M0,1


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
    steps: Mapping[Block, tuple[Step, ...]]

    def thread(self, number: int) -> str:
        """threadIdx.x and threadIdx.y of a thread of a block, as (1,0)."""
        return f"({number % self.block[0]},{number // self.block[0]})"

    def told(self, block: Block = (0, 0)) -> Iterator[str]:
        """The lines: what is launched, the steps of this block, and the walks of its first thread through A and B."""
        a, b, c = (f"{each.name} ({each.rows}×{each.columns})" for each in self.arrays[:3])
        grid, threads = ("×".join(map(str, each)) for each in (self.grid, self.block))
        yield f"{self.kernel}: {c} = {a} · {b}, {grid} blocks of {threads} threads"
        yield ""
        steps = self.steps.get(block, ())
        numbers = sorted({touch.thread for step in steps for touch in step.touches})
        shown = numbers[:_MOST_THREADS]
        more = f" (and {counted(len(numbers) - len(shown), 'thread')} more)" if len(numbers) > len(shown) else ""
        rows = [(f"block ({block[0]},{block[1]})", *(f"thread {self.thread(number)}" for number in shown))]
        rows += [(f"line {step.line}", *(self._did(step, number) for number in shown)) for step in steps]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        yield lines[0] + more
        for before, step, line in zip((None, *steps), steps, lines[1:], strict=False):
            if before is None or step.barriers != before.barriers:
                yield f"-- {counted(step.barriers, 'barrier')} passed"
            yield line
        yield ""
        yield from (self._walk(array, steps) for array in (0, 1))

    def _did(self, step: Step, thread: int) -> str:
        """What a thread does in a step: M[0][1] → Ms[0][1] for a load and a store, → Ms[0][1] for a store alone."""
        own = [touch for touch in step.touches if touch.thread == thread]
        loads, stores = (
            [f"{self.arrays[each.array].name}[{each.row}][{each.column}]" for each in own if each.writes == writes]
            for writes in (False, True)
        )
        return " ".join([*loads, *(["→", *stores] if stores else [])])

    def _walk(self, array: int, steps: Sequence[Step]) -> str:
        """The elements of a matrix that a block's first thread loads, in a line."""
        name, columns = self.arrays[array].name, self.arrays[array].columns
        loads = [each for step in steps for each in step.touches if (each.thread, each.array, each.writes) == (0, array, False)]
        walk = [each.row * columns + each.column for each in loads]
        if not walk:
            return f"thread (0,0) loads nothing of {name}"
        strides = {after - before for before, after in pairwise(walk)}
        shown = ", ".join(map(str, walk[:_MOST_WALK])) + (", …" if len(walk) > _MOST_WALK else "")
        stride = f", stride {strides.pop()}" if len(strides) == 1 else ""
        return f"thread (0,0) loads {name}[{shown}] as memory numbers them{stride}"

    def for_page(self, note: str = "") -> Steps:
        """The steps as a page or a picture shows them. `note`: what is to be said besides."""
        in_words = list(self.told())
        blocks = [{"at": f"{x},{y}", "steps": list(map(asdict, steps))} for (x, y), steps in self.steps.items()]
        arrays = list(map(asdict, self.arrays))
        data: dict[str, Any] = {"block": self.block, "arrays": arrays, "source": self.source, "blocks": blocks}
        return Steps(f"{in_words[0]}{note}", data, in_words)


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
    if n * l * m > _MOST_PRODUCTS:
        raise UsageError(
            f"{n}×{l}×{m} are {n * l * m} multiplications: at most {_MOST_PRODUCTS} can be shown, such as --width 16",
            code="lab-shown",
        )
    if any(len(extents) > 2 for extents in (trials.launch.grid, trials.launch.block)):
        raise UsageError(
            f"a picture shows blocks and threads by x and y, and this launch has a z: {trials.launch}", code="lab-shown"
        )
    case, accesses = trials.traced(sizes)
    item = np.dtype(trials.meaning.dtype).itemsize
    arrays = _arrays(trials, case, accesses, item)
    by_block: dict[Block, list[Stored]] = {}
    for access, element in with_elements(accesses, item):
        by_block.setdefault(access.block, []).append((access, element))
    steps = {
        block: tuple(_steps(of_block, arrays, item))
        for block, of_block in sorted(by_block.items(), key=lambda each: each[0][::-1])
    }
    return Picture(str(trials.kernel), tuple(trials.file.text.rstrip("\n").split("\n")), case.grid, case.block, arrays, steps)


def _steps(accesses: Sequence[Stored], arrays: Sequence[Array], item: int) -> Iterator[Step]:
    """The executions of lines by a block's threads.

    A thread executes a line anew if one of the line's instructions comes again, or if another line came between. The n-th
    execution of a line by all threads is one step. Steps are in the order in which a thread first makes them.
    """
    now: dict[int, tuple[int, int, set[int]]] = {}  # by thread: barriers and line of its last access, and the instructions since
    counts: dict[tuple[int, int, int], int] = {}  # by thread, barriers and line
    position: dict[int, int] = {}  # by thread: how many executions it has begun
    runs: dict[tuple[int, int, int], tuple[int, list[Stored]]] = {}  # by barriers, line and number
    for access, element in accesses:
        barriers, line, seen = now.get(access.thread, (-1, 0, set()))
        key = (access.thread, access.barriers, access.line)
        if (barriers, line) != key[1:] or access.instruction in seen:
            seen = set()
            counts[key] = counts.get(key, 0) + 1
            position[access.thread] = position.get(access.thread, 0) + 1
        now[access.thread] = (access.barriers, access.line, seen | {access.instruction})
        run = (access.barriers, access.line, counts[key])
        first, of_run = runs.setdefault(run, (position[access.thread], []))
        of_run.append((access, element))
        runs[run] = (min(first, position[access.thread]), of_run)
    for (barriers, line, _), (_, of_run) in sorted(runs.items(), key=lambda each: (each[0][0], each[1][0], each[0][1])):
        yield Step(barriers, line, tuple(touch for each in of_run for touch in _touches(*each, arrays, item)))


def _touches(access: Access, stored: Element | None, arrays: Sequence[Array], item: int) -> Iterator[Touch]:
    """The elements that an access touches: several for a vector load. `stored`: the first that is stored in shared memory."""
    number = access.of if isinstance(access.of, int) else [each.name for each in arrays].index(access.of)
    first = access.byte // item
    for element in range(first, -(-(access.byte + access.bytes) // item)):
        text = ""
        if access.writes and arrays[number].shared:
            of = arrays[stored[0]] if stored else None
            text = "{}{},{}".format(of.name, *divmod(stored[1] + element - first, of.columns)) if of and stored else "0"
        yield Touch(access.thread, number, *divmod(element, arrays[number].columns), access.writes, text)


def _arrays(trials: Trials, case: Case, accesses: Sequence[Access], item: int) -> tuple[Array, ...]:
    (n, l, m), names = case.sizes, trials.meaning.names(trials.kernel)
    arrays = [Array(name, *shape, False) for name, shape in zip(names, ((n, l), (l, m), (n, m)), strict=True)]
    for name in dict.fromkeys(access.of for access in accesses if isinstance(access.of, str)):
        elements = 1 + max(access.byte for access in accesses if access.of == name) // item
        declared = re.search(rf"\b{re.escape(name)}\s*(?:\[[^\]]*\])*\[([^\]]*)\]", trials.kernel.body)
        columns = (evaluated_or_0(declared[1], trials.file.constants) if declared else 0) or elements
        arrays.append(Array(name, -(-elements // columns), columns, True))
    return tuple(arrays)


def small_steps(trials: Trials, anew: Callable[[StudentFile], Trials]) -> Steps | str:
    """The steps of a launch on small matrices, or why there are none. Tiles or blocks have the width 2, if the file's width can
    be changed, else its own. `anew`: the trials of a changed file."""
    try:
        for changed, note in ((_with_small_tiles(trials, anew), "tiles"), (_with_small_blocks(trials), "blocks")):
            if changed is not None:
                return picture(changed, changed.meaning.on((2 * _SMALL,) * 3)).for_page(f", with {note} of {_SMALL}")
        _, block, _ = trials.launch.at({**trials.file.constants, "n": _LARGEST, "l": _LARGEST, "m": _LARGEST})
        width = min(_LARGEST, 2 * max(block))
        return picture(trials, trials.meaning.on((width,) * 3)).for_page()
    except HybridError as error:
        return str(error)


def _with_small_tiles(trials: Trials, anew: Callable[[StudentFile], Trials]) -> Trials | None:
    """The trials with a smaller width of the tiles. None unless the launch follows the tile's constant, the only one whose name
    has TILE or BLOCK, and its number is nowhere else in the file."""
    text = "\n".join(trials.file.texts.values())
    found = [int(width) for _, width in _TILE.findall(text)]
    if len(found) != 1 or found[0] <= _SMALL or len(re.findall(rf"\b{found[0]}\b", blanked(text))) > 1:
        return None
    changed = anew(parsed(with_tile(trials.file.texts, _SMALL)))
    sizes = dict.fromkeys("nlm", found[0])
    (_, before, _), (_, after, _) = (each.launch.at({**each.file.constants, **sizes}) for each in (trials, changed))
    return changed if max(after) <= _SMALL * _SMALL < max(before) * max(before) else None


def _with_small_blocks(trials: Trials) -> Trials | None:
    """The trials with a smaller block. None unless the kernel computes with blockDim, has no shared memory, and does not have the
    blocks' width as a number."""
    body, launch = trials.kernel.body, trials.launch
    has_width = any(re.search(rf"\b{re.escape(width)}\b", body) for width in launch.block if width != "1")
    if (
        not launch.follows_block
        or has_width
        or "__shared__" in body
        or not {"blockDim", "blockIdx"} <= set(re.findall(r"\w+", body))
    ):
        return None
    block = f"{_SMALL},{_SMALL}" if launch.block[1] != "1" else str(_SMALL)
    return replace(trials, launch=launch_of(trials.file, trials.kernel, trials.meaning, {"block": block}))
