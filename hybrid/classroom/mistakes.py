# SPDX-License-Identifier: MIT
"""Which mistake makes a wrong C: hypotheses that are tried until one gives every element as it is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hybrid.core.text import counted

Mistake = tuple[str, str]  # a code, and a sentence with {A}, {B} and {C}
_MOST_TERMS = 2048  # of a sum: longer ones are not solved for
_MOST_EQUATIONS = 4096


def mistake_in(c: np.ndarray, right: np.ndarray, a: np.ndarray, b: np.ndarray) -> Mistake | None:
    """The mistake that explains all wrong elements of C which are numbers; None where no hypothesis does.

    All in float64, and C without alpha and beta.
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    wrong = (c != right) & np.isfinite(c)
    if not wrong.any():
        return None
    found = (text for make in (_turned, _misread, _miscounted, _miscomputed) for text in make(c, right, a, b, wrong))
    return next(found, None)


def _turned(c: np.ndarray, _: np.ndarray, a: np.ndarray, b: np.ndarray, wrong: np.ndarray) -> Iterator[Mistake]:
    """Row and column exchanged in the index of some matrices."""
    as_read = [(each, each.ravel().reshape(each.shape[::-1]).T) for each in (a, b)]
    for matrices in ("A", "B", "C", "AB", "ABC", "AC", "BC"):
        x, y = (both[letter in matrices] for both, letter in zip(as_read, "AB", strict=True))
        product = x @ y
        if _is(c, product.T.reshape(c.shape) if "C" in matrices else product, wrong):
            listed = " and ".join(filter(None, (", ".join(f"{{{each}}}" for each in matrices[:-1]), f"{{{matrices[-1]}}}")))
            by_columns = "column by column" + (", as BLAS and Fortran have it" if matrices == "ABC" else "")
            yield (
                "transposed-index",
                f"row and column are exchanged in the index of {listed}: with {listed} stored {by_columns}, {{C}} would be right",
            )


def _misread(c: np.ndarray, _: np.ndarray, a: np.ndarray, b: np.ndarray, wrong: np.ndarray) -> Iterator[Mistake]:
    """A factor that is read with another distance between its rows, or from the other factor's memory."""
    (n, l), m = a.shape, b.shape[1]
    sizes = {"the rows of {A}": n, "the columns of {A}": l, "the columns of {B}": m}
    flat = {"A": a.ravel(), "B": b.ravel()}
    for of_a, of_b in (("A", "B"), ("A", "A"), ("B", "B")):
        for name_a, stride_a in sizes.items():
            for name_b, stride_b in sizes.items():
                x, y = _taken(flat[of_a], n, l, stride_a), _taken(flat[of_b], l, m, stride_b)
                if not _is(c, x @ y, wrong & np.isfinite(x @ y)):
                    continue
                if of_a == of_b:
                    other = "AB".replace(of_a, "")
                    text = f"{{C}} is {{{of_a}}} · {{{of_a}}}: what should be of {{{other}}} is read from {{{of_a}}}"
                    yield "wrong-operand", text
                elif (stride_a, stride_b) != (l, m):
                    which, name, so = ("A", name_a, "{A}") if stride_a != l else ("B", name_b, "{B}")
                    yield "wrong-stride", f"the rows of {{{which}}} are taken to lie {name} apart: it is the columns of {so}"


def _taken(flat: np.ndarray, rows: int, columns: int, stride: int) -> np.ndarray:
    """Elements at row · stride + column, as if a matrix lay there; NaN beyond the end."""
    numbers = np.arange(rows)[:, None] * stride + np.arange(columns)
    return np.where(numbers < flat.size, flat[np.minimum(numbers, flat.size - 1)], np.nan)


def _miscounted(c: np.ndarray, _: np.ndarray, a: np.ndarray, b: np.ndarray, wrong: np.ndarray) -> Iterator[Mistake]:
    """Products of the sum that are left out, or added several times."""
    rows, columns = np.nonzero(wrong)
    l, step = a.shape[1], max(1, len(rows) // _MOST_EQUATIONS)
    terms, values = a[rows[::step]] * b[:, columns[::step]].T, c[rows[::step], columns[::step]]
    if len(terms) < 2 or l > _MOST_TERMS:
        return
    up_to = np.flatnonzero((np.cumsum(terms, axis=1) == values[:, None]).all(axis=0))
    alone = np.flatnonzero((terms == values[:, None]).all(axis=0))
    weights = np.zeros(l)
    if len(up_to):
        weights[: up_to[0] + 1] = 1
    elif len(alone):
        weights[alone[-1]] = 1
    elif len(terms) >= l:
        weights = np.rint(np.linalg.lstsq(terms, values, rcond=None)[0])
    if weights.any() and _is(c, (a * weights) @ b, wrong):
        yield "wrong-terms", _weighted(weights)


def _weighted(weights: np.ndarray) -> str:
    """What is said of a sum of weighted products that is not the sum of all once. `weights`: of each k."""
    l, without = len(weights), np.flatnonzero(weights == 0)
    if (weights == weights[0]).all():
        return "{C} is the product with the other sign" if weights[0] == -1 else f"{{C}} is {weights[0]:g} times the product"
    if len(without) == l - 1 and weights[-1] == 1:
        return "each element of {C} is its last product alone: is it assigned with =, where += should add it to the others?"
    if len(without) and set(weights) == {0, 1}:
        first = int(without[0])
        if len(without) == l - first:
            which = f"from k = {first} on" if first < l - 1 else f"of the last k, {first},"
        else:
            which = f"of k = {_listed(without)}"
        return f"the products {which} are not in the sum: {counted(len(without), 'product')} of {l}"
    several = np.flatnonzero(weights != 1)
    return f"the products of k = {_listed(several)} are in the sum {weights[several[0]]:g} times"


def _listed(numbers: np.ndarray) -> str:
    return ", ".join(map(str, numbers[:4])) + (", …" if len(numbers) > 4 else "")


def _miscomputed(c: np.ndarray, right: np.ndarray, a: np.ndarray, b: np.ndarray, wrong: np.ndarray) -> Iterator[Mistake]:
    """Sums in place of products, whole numbers, sums that go on from element to element."""
    whole = np.zeros(c.shape)
    for k in range(a.shape[1]):
        whole = np.trunc(whole + np.outer(a[:, k], b[k]))
    for made, text in (
        (a.sum(axis=1)[:, None] + b.sum(axis=0), "elements are added where they should be multiplied"),
        (whole, "the sum is kept in a whole number: its variable is an int, or the like"),
        (np.trunc(right), "{C}'s elements are whole numbers: they are converted to int, or the like"),
        (
            np.cumsum(right, axis=1),
            "each element of {C} also has the sums before it in its row: the sum does not begin with 0 again",
        ),
        (np.cumsum(right, axis=0), "each element of {C} also has the sums above it: the sum does not begin with 0 again"),
    ):
        if _is(c, made, wrong):
            yield "wrong-terms", text


def _is(c: np.ndarray, made: np.ndarray, where: np.ndarray) -> bool:
    """Whether C is that where it is wrong, and there is enough of it to tell."""
    return bool(where.any()) and bool((c[where] == made[where]).all())
