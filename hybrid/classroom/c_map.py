# SPDX-License-Identifier: MIT
"""A map of C in characters, which shows which elements are right."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

_MOST = (16, 40)  # lines and characters
_LEGEND = {"!": "written by several threads", "?": "never written", "x": "wrong", ".": "right"}


def drawn(
    name: str, shape: tuple[int, int], wrong: Collection[int], never: Collection[int], uncertain: Collection[int]
) -> list[str]:
    """The map's lines for the matrix of this name, first a legend. Elements are numbered row by row. A character shows the worst
    of the elements that it stands for. A matrix of one column is drawn as a line."""
    shape = shape[::-1] if shape[1] == 1 else shape
    codes = kinds(shape, wrong, never, uncertain)
    height, width = (-(-size // most) for size, most in zip(shape, _MOST, strict=True))
    scale = f"{height}×{width} elements of {name}" if height * width > 1 else f"an element of {name}"
    legend = ", ".join(f"{character} {text}" for character, text in _LEGEND.items())
    return [
        f"a character is {scale}{', the worst of them' if height * width > 1 else ''}: {legend}",
        *map_lines(codes, height, width, ".x?!"),
    ]


def kinds(shape: tuple[int, int], wrong: Collection[int], never: Collection[int], uncertain: Collection[int]) -> np.ndarray:
    """For each element a number: 0 for a right one, 1 wrong, 2 never written, 3 written by several threads."""
    codes = np.zeros(shape, int)
    for code, elements in enumerate((wrong, never, uncertain), 1):
        codes.flat[list(elements)] = code
    return codes


def map_lines(codes: np.ndarray, height: int, width: int, characters: str) -> list[str]:
    """Lines with a character for each `height`×`width` codes: that of the largest code."""
    return ["".join(characters[cell] for cell in line).rstrip() for line in reduced(codes, height, width)]


def reduced(codes: np.ndarray, height: int, width: int) -> np.ndarray:
    """The largest code of each `height`×`width` codes."""
    rows, columns = codes.shape
    padded = np.pad(codes, ((0, -rows % height), (0, -columns % width)))
    return padded.reshape(-(-rows // height), height, -(-columns // width), width).max(axis=(1, 3))
