# SPDX-License-Identifier: MIT
"""The steps of a small product in words: which thread loads and stores which element, between which barriers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hybrid.classroom.steps import Picture, Step
from hybrid.core.text import counted

_MOST_THREADS, _MOST_WALK = 4, 8  # threads that have a column; elements of a walk that are shown


def told(picture: Picture, block: tuple[int, int] = (0, 0)) -> Iterator[str]:
    """The lines: what is launched, the steps of this block, and the walks of its first thread through A and B."""
    a, b, c = picture.arrays[:3]
    shapes = [f"{each.name} ({each.rows}×{each.columns})" for each in (c, a, b)]
    grid, threads = ("×".join(map(str, each)) for each in (picture.grid, picture.block))
    yield f"{picture.kernel}: {shapes[0]} = {shapes[1]} · {shapes[2]}, {grid} blocks of {threads} threads"
    yield ""
    steps = picture.steps.get(block, ())
    numbers = sorted({touch.thread for step in steps for touch in step.touches})
    shown = numbers[:_MOST_THREADS]
    more = f" (and {counted(len(numbers) - len(shown), 'thread')} more)" if len(numbers) > len(shown) else ""
    heads = [f"thread {_pair(picture.thread(number))}" for number in shown]
    rows = [(f"line {step.line}", *(_did(picture, step, number) for number in shown)) for step in steps]
    first = f"block {_pair(block)}"
    widths = [max(map(len, column)) for column in zip((first, *heads), *rows, strict=True)]
    yield _row((first, *heads), widths) + more
    barriers = -1
    for step, row in zip(steps, rows, strict=True):
        if step.barriers != barriers:
            barriers = step.barriers
            yield f"-- {counted(barriers, 'barrier')} passed"
        yield _row(row, widths)
    yield ""
    for array in (0, 1):
        yield _walk(picture, array, block)


def _did(picture: Picture, step: Step, thread: int) -> str:
    """What a thread does in a step: M[0][1] → Ms[0][1] for a load and a store, → Ms[0][1] for a store alone."""
    own = [touch for touch in step.touches if touch.thread == thread]
    loads, stores = (
        [f"{picture.arrays[each.array].name}[{each.row}][{each.column}]" for each in own if each.writes == writes]
        for writes in (False, True)
    )
    return " ".join([*loads, *(["→", *stores] if stores else [])])


def _walk(picture: Picture, array: int, block: tuple[int, int]) -> str:
    """The elements of a matrix that the block's first thread loads, in a line."""
    walk, name = picture.walk(array, block), picture.arrays[array].name
    steps = {after - before for before, after in pairwise(walk)}
    shown = ", ".join(map(str, walk[:_MOST_WALK])) + (", …" if len(walk) > _MOST_WALK else "")
    stride = f", stride {steps.pop()}" if len(steps) == 1 else ""
    return (
        f"thread (0,0) loads {name}[{shown}] as memory numbers them{stride}" if walk else f"thread (0,0) loads nothing of {name}"
    )


def _row(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _pair(pair: tuple[int, int]) -> str:
    return f"({pair[0]},{pair[1]})"
