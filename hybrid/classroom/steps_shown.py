# SPDX-License-Identifier: MIT
"""A picture's steps for a page that shows them, and which small launch of a kernel is a picture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from hybrid.classroom.blackboard import told
from hybrid.classroom.c_text import blanked
from hybrid.classroom.examination import Trials
from hybrid.classroom.launch import launch_of
from hybrid.classroom.steps import Array, Picture, Step, picture, tile_in, with_tile
from hybrid.classroom.student_file import StudentFile, parsed
from hybrid.errors import HybridError
from hybrid.reporting.steps_page import Steps

_TILE, _LARGEST = 2, 16  # of a picture: the width of its tiles, where it can be chosen, and the most of a square matrix


def steps_of(shown: Picture, note: str = "") -> Steps:
    """`note`: what is to be said besides."""

    def step(of: Step, stored: Sequence[str]) -> dict[str, Any]:
        touches = [
            [each.thread, each.array, each.row, each.column, int(each.writes), text]
            for each, text in zip(of.touches, stored, strict=True)
        ]
        return {"barriers": of.barriers, "line": of.line, "touches": touches}

    def block(steps: Sequence[Step]) -> list[dict[str, Any]]:
        return [step(each, stored) for each, stored in zip(steps, _stored(steps, shown.arrays), strict=True)]

    in_words = list(told(shown))
    data = {
        "block": shown.block,
        "arrays": [{**asdict(array), "shared": array.is_shared} for array in shown.arrays],
        "source": shown.source,
        "blocks": [{"at": f"{x},{y}", "steps": block(steps)} for (x, y), steps in shown.steps.items()],
    }
    return Steps(f"{in_words[0]}{note}", data, in_words)


def _stored(steps: Sequence[Step], arrays: Sequence[Array]) -> Iterator[list[str]]:
    """For each step what its stores leave in shared memory, "" for other accesses: the element of a matrix that the thread loads
    in this step, or where no thread loads one the first that it has loaded before, into a register; else "0"."""
    waiting: dict[int, list[str]] = {}  # by thread: what it has loaded and not stored
    for step in steps:
        is_load = [not touch.writes and not arrays[touch.array].is_shared for touch in step.touches]
        now: dict[int, str] = {}
        texts = []
        for touch, loads in zip(step.touches, is_load, strict=True):
            before, text = waiting.setdefault(touch.thread, []), ""
            if loads:
                now[touch.thread] = f"{arrays[touch.array].name}{touch.row},{touch.column}"
                before.append(now[touch.thread])
            elif touch.writes and arrays[touch.array].is_shared:
                text = now.get(touch.thread, "0") if any(is_load) else before[0] if before else "0"
                if text in before:
                    before.remove(text)
            texts.append(text)
        yield texts


def small_steps(trials: Trials, anew: Callable[[StudentFile], Trials]) -> tuple[Steps | None, str]:
    """The steps of a launch on small matrices: with tiles or blocks of 2 where the file's can be changed, else with its own; or
    why there are none. `anew`: how a changed file is run."""
    try:
        for changed, note in ((_with_small_tiles(trials, anew), "tiles"), (_with_small_blocks(trials), "blocks")):
            if changed is not None:
                return steps_of(picture(changed, changed.meaning.on((2 * _TILE,) * 3)), f", with {note} of {_TILE}"), ""
        _, block, _ = trials.launch.at({**trials.file.constants, "n": _LARGEST, "l": _LARGEST, "m": _LARGEST})
        width = min(_LARGEST, 2 * max(block))
        return steps_of(picture(trials, trials.meaning.on((width,) * 3))), ""
    except HybridError as error:
        return None, str(error)


def _with_small_tiles(trials: Trials, anew: Callable[[StudentFile], Trials]) -> Trials | None:
    """None unless the launch follows the tile's constant, and its number stands nowhere else in the file."""
    file = trials.file
    tile = tile_in(file.texts)
    if tile is None or tile <= _TILE or len(re.findall(rf"\b{tile}\b", blanked("\n".join(file.texts.values())))) > 1:
        return None
    changed = anew(parsed(with_tile(file.texts, _TILE)))
    sizes = {"n": tile, "l": tile, "m": tile}
    (_, before, _), (_, after, _) = (each.launch.at({**each.file.constants, **sizes}) for each in (trials, changed))
    return changed if max(after) <= _TILE * _TILE < max(before) * max(before) else None


def _with_small_blocks(trials: Trials) -> Trials | None:
    """None unless the kernel goes by blockDim, has no shared memory, and its blocks' width stands nowhere in it."""
    file, kernel, launch = trials.file, trials.kernel, trials.launch
    goes_by_it = launch.follows_block and all(word in kernel.body for word in ("blockDim", "blockIdx"))
    if (
        not goes_by_it
        or "__shared__" in kernel.body
        or any(re.search(rf"\b{re.escape(width)}\b", kernel.body) for width in launch.block if width != "1")
    ):
        return None
    block = f"{_TILE},{_TILE}" if launch.block[1] != "1" else str(_TILE)
    return replace(trials, launch=launch_of(file, kernel, trials.meaning, {"block": block}))
