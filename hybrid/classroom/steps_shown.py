# SPDX-License-Identifier: MIT
"""Prepares a picture's steps for a page, and chooses the small launch of a kernel that is shown there."""

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

_TILE, _LARGEST = 2, 16  # the width of a picture's tiles, where it can be chosen; the largest width of a square matrix


def steps_of(shown: Picture, note: str = "") -> Steps:
    """The steps for a page. `note`: what is to be said besides."""

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
    """For each step and touch, what a store leaves in shared memory; "" for other accesses.

    That is the element of a matrix that the thread loads in the same step. If no thread loads one then, it is the first element
    that the thread has loaded before, into a register, and not stored. Else it is "0".
    """
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
    """The steps of a launch on small matrices, or why there are none. Tiles or blocks have the width 2, if the file's width can
    be changed, else its own. `anew`: the trials of a changed file."""
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
    """The trials with a smaller width of the tiles. None unless the launch follows the tile's constant, and its number is nowhere
    else in the file."""
    file = trials.file
    tile = tile_in(file.texts)
    if tile is None or tile <= _TILE or len(re.findall(rf"\b{tile}\b", blanked("\n".join(file.texts.values())))) > 1:
        return None
    changed = anew(parsed(with_tile(file.texts, _TILE)))
    sizes = {"n": tile, "l": tile, "m": tile}
    (_, before, _), (_, after, _) = (each.launch.at({**each.file.constants, **sizes}) for each in (trials, changed))
    return changed if max(after) <= _TILE * _TILE < max(before) * max(before) else None


def _with_small_blocks(trials: Trials) -> Trials | None:
    """The trials with a smaller block. None unless the kernel computes with blockDim, has no shared memory, and does not have the
    blocks' width as a number."""
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
