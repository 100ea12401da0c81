# SPDX-License-Identifier: MIT
"""Reads in a small launch's accesses which products a wrong element of C is the sum of, and in which line they go astray."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hybrid.classroom.finding import Finding
from hybrid.emulation.trace import Access

Element = tuple[int, int]  # 0 for A, 1 for B, and the element's number
_A, _B, _C = range(3)


def astray(
    accesses: Sequence[Access], a: np.ndarray, b: np.ndarray, wrong: int, is_now: float, names: Sequence[str]
) -> Finding | None:
    """Where the sum of an element of C first has another product than it should; None where the accesses do not tell, or are not
    all that the element is made of.

    `wrong`: the element's number, row by row. `is_now`: what it is, without alpha and beta. `names`: of A, B and C.
    """
    for keeps in (False, True):
        uses = list(_uses(accesses, a.itemsize, wrong, keeps))
        pairs = [sorted(pair, key=_order) for pair in zip(uses[::2], uses[1::2], strict=False)]
        products = [_value(one[0], a, b) * _value(other[0], a, b) for one, other in pairs]
        if products and len(uses) % 2 == 0 and sum(products) == is_now:
            return _first_astray(pairs, a, b, wrong, names)
    return None


def _uses(accesses: Sequence[Access], item: int, wrong: int, keeps: bool) -> Iterator[tuple[Element | None, int]]:
    """The factors, each with its line, that the element's thread read since it last wrote to C; None for one that is 0.

    What is read for shared memory is no factor, but is one where it is read there. `keeps`: a cell of shared memory that is
    written without an element being read has still the element that it had, and not 0.
    """
    writers = [each for each in accesses if each.of == _C and each.writes and each.byte == wrong * item]
    if not writers:
        return
    writer = writers[-1].block, writers[-1].thread
    cells: dict[tuple[tuple[int, int], int | str, int], Element | None] = {}
    home: dict[int | str, int] = {}  # the matrix whose elements a shared array has
    pending: dict[tuple[tuple[int, int], int], list[tuple[Element | None, int]]] = {}
    for access in accesses:
        who, cell = (access.block, access.thread), (access.block, access.of, access.byte)
        waiting = pending.setdefault(who, [])
        if access.of == _C:
            if access is writers[-1]:
                yield from waiting
                return
            if access.writes:
                waiting.clear()
        elif isinstance(access.of, int):
            waiting.append(((access.of, access.byte // item), access.line))
        elif access.writes:
            read = [one for one in waiting if one[0] and one[1] > 0 and home.setdefault(access.of, one[0][0]) == one[0][0]]
            cells[cell] = read[0][0] if read else cells.get(cell) if keeps else None
            if read:
                waiting.remove(read[0])
        elif who == writer:
            waiting.append((cells.get(cell), -access.line))


def _order(use: tuple[Element | None, int]) -> Element:
    return use[0] or (_C, 0)


def _value(element: Element | None, a: np.ndarray, b: np.ndarray) -> float:
    return 0.0 if element is None else float((a, b)[element[0]].flat[element[1]])


def _first_astray(
    pairs: Sequence[Sequence[tuple[Element | None, int]]], a: np.ndarray, b: np.ndarray, wrong: int, names: Sequence[str]
) -> Finding | None:
    row, column = divmod(wrong, b.shape[1])
    missing = {((_A, row * a.shape[1] + k), (_B, k * b.shape[1] + column)) for k in range(a.shape[1])}
    for (one, line), (other, _) in pairs:
        if one is None or other is None:
            continue
        if (one, other) in missing:
            missing.remove((one, other))
            continue
        factors = " by ".join(_named(each, a, b, names) for each in (one, other))
        text = f"line {abs(line)} multiplies {factors} for {names[_C]}[{row}][{column}]"
        return Finding(f"{text}, a product that its sum does not have or has already", "wrong-terms")
    return None


def _named(element: Element, a: np.ndarray, b: np.ndarray, names: Sequence[str]) -> str:
    row, column = divmod(element[1], (a, b)[element[0]].shape[1])
    return f"{names[element[0]]}[{row}][{column}]"
