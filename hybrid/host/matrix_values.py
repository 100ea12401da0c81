# SPDX-License-Identifier: MIT
"""What every reader of matrices refuses: what is no matrix of numbers, names that are not there, values that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from hybrid.core.settings import nearest
from hybrid.errors import UsageError

NUMBERS = "biufc"  # the kinds of NumPy's types that are numbers
_MOST_NAMES = 8  # the most that an error lists


def refuse_no_matrix(shape: tuple[int, ...] | None, dtype: np.dtype) -> None:
    """UsageError, without the file's name, unless this is the shape and the type of a matrix of numbers."""
    if shape is None or len(shape) != 2:
        raise UsageError(f"does not hold a matrix: its shape is {'unknown' if shape is None else shape}", code="dimensions")
    if dtype.kind not in NUMBERS:
        raise UsageError(f"holds {dtype}: only numbers can be multiplied here", code="no-numbers")


@contextmanager
def refusing_overflow(path: str, dtype: np.dtype) -> Iterator[None]:
    """A context in which values are converted to `dtype`. UsageError for values that it cannot hold."""
    try:
        with np.errstate(over="raise"):
            yield
    except FloatingPointError:
        raise UsageError(f"{path} holds values too large for {dtype}", code="file-values") from None


def listed(names: Sequence[str]) -> str:
    """The names of the matrices in a file, for an error."""
    if not names:
        return "no matrix of numbers"
    more = f" and {len(names) - _MOST_NAMES} others" if len(names) > _MOST_NAMES else ""
    return ", ".join(f"/{name}" for name in names[:_MOST_NAMES]) + more


def meant(name: str, names: Sequence[str]) -> str:
    """The end of an error for a name that is not there: the one that was probably meant, or those that there are."""
    near = nearest(name, names, likeness=0.5)  # g/A of A, too
    return f"did you mean /{near}?" if near else f"it holds {listed(names)}"


def only_one(names: Sequence[str]) -> str:
    """The name of a file's only matrix. UsageError, without the file's name, where there is none, or a choice."""
    if len(names) != 1:
        choice = ": add the name of one, after a colon" if names else ""
        raise UsageError(f"holds {listed(names)}{choice}", code="dataset-missing")
    return names[0]
