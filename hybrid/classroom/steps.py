# SPDX-License-Identifier: MIT
"""The steps of a lecture's picture, from the accesses of a small launch: what the threads of a block load and store together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hybrid.classroom.case import Case
from hybrid.classroom.cuda_text import blanked, evaluated_or_0
from hybrid.classroom.examination import Trials
from hybrid.classroom.launch import launch_of
from hybrid.classroom.mistakes import Element, with_elements
from hybrid.classroom.student_file import StudentFile, parsed
from hybrid.emulation.observed import Access
from hybrid.errors import HybridError, UsageError
from hybrid.reporting.steps_page import Array, Picture, Step, Touch

_TILE = re.compile(
    r"^([ \t]*(?:#[ \t]*define[ \t]+|(?:static\s+)?(?:const|constexpr)\s+(?:unsigned\s+)?int\s+)"
    r"\w*(?:TILE|BLOCK)\w*[ \t]*=?[ \t]*)(\d+)",
    re.MULTILINE | re.IGNORECASE,
)
_MOST_PRODUCTS = 1 << 12  # multiplications: more are no picture
_SMALL, _LARGEST = 2, 16  # the width of tiles, where it can be chosen; the largest width of a square matrix

Block = tuple[int, int]
Stored = tuple[Access, Element | None]  # an access, and the element of a matrix that it reads or stores


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
        yield Touch(access.thread, number, element, access.writes, text)


def _arrays(trials: Trials, case: Case, accesses: Sequence[Access], item: int) -> tuple[Array, ...]:
    (n, l, m), names = case.sizes, trials.meaning.names(trials.kernel)
    arrays = [Array(name, *shape, False) for name, shape in zip(names, ((n, l), (l, m), (n, m)), strict=True)]
    for name in dict.fromkeys(access.of for access in accesses if isinstance(access.of, str)):
        elements = 1 + max(access.byte for access in accesses if access.of == name) // item
        declared = re.search(rf"\b{re.escape(name)}\s*(?:\[[^\]]*\])*\[([^\]]*)\]", trials.kernel.body)
        columns = (evaluated_or_0(declared[1], trials.file.constants) if declared else 0) or elements
        arrays.append(Array(name, -(-elements // columns), columns, True))
    return tuple(arrays)


def small_steps(trials: Trials, anew: Callable[[StudentFile], Trials]) -> Picture | str:
    """The steps of a launch on small matrices, or why there are none. Tiles or blocks have the width 2, if the file's width can
    be changed, else its own. `anew`: the trials of a changed file."""
    try:
        for changed, note in ((_with_small_tiles(trials, anew), "tiles"), (_with_small_blocks(trials), "blocks")):
            if changed is not None:
                return replace(picture(changed, changed.meaning.on((2 * _SMALL,) * 3)), note=f", with {note} of {_SMALL}")
        _, block, _ = trials.launch.at({**trials.file.constants, "n": _LARGEST, "l": _LARGEST, "m": _LARGEST})
        width = min(_LARGEST, 2 * max(block))
        return picture(trials, trials.meaning.on((width,) * 3))
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
