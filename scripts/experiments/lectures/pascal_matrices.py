# SPDX-License-Identifier: MIT
"""Pascal's triangles as matrices, whether their product is the identity, and how they are printed."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hybrid.errors import UsageError

LIMITS = {"int32": 2**31 - 1, "int64": 2**63 - 1, "float32": 2**24, "float64": 2**53}  # of integers held without a gap

Wrong = dict[str, Any]  # an element of a product that should be the identity: the size, its row, column and value

MOST_SHOWN = 20  # rows and columns


def has_entries(size: int, dtype: str) -> bool:
    """Whether none is beyond the type's largest number."""
    limit = LIMITS[dtype] if dtype.startswith("int") else int(np.finfo(dtype).max)
    return math.comb(size - 1, (size - 1) // 2) <= limit


def triangles(size: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """L and R, each entry rounded once. UsageError for sizes whose entries exceed the type."""
    if not has_entries(size, dtype):
        raise UsageError(f"the triangle of size {size} has entries beyond the largest {dtype}: a smaller --size")
    whole = np.array([[math.comb(row, column) for column in range(size)] for row in range(size)], object)
    signs = np.array([[(-1) ** (row + column) for column in range(size)] for row in range(size)], object)
    return whole.astype(dtype), (whole * signs).astype(dtype)


def first_wrong(product: np.ndarray) -> Wrong | None:
    """The first element that is not the identity's; None where all are."""
    wrong = product != np.eye(len(product), dtype=product.dtype)
    if not wrong.any():
        return None
    row, column = map(int, np.unravel_index(int(wrong.argmax()), wrong.shape))
    return {"size": len(product), "row": row, "column": column, "value": float(product[row, column])}


def as_text(wrong: Wrong) -> str:
    row, column = wrong["row"], wrong["column"]
    return f"N = {wrong['size']}: [{row}][{column}] is {wrong['value']:.12g}, not {int(row == column)}"


def shown(matrices: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Each under its name, whole numbers in aligned columns, zeros as dots: the triangles can be seen."""
    for name, matrix in matrices.items():
        cells = [[f"{value:.12g}" if value else "·" for value in row] for row in matrix]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        yield name
        for row in cells:
            yield "  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        yield ""
