# SPDX-License-Identifier: MIT
"""Findings: sentences with codes. And why a C is wrong: tries typical mistakes until one reproduces C, and judges whether a
launch of a whole program computed a product."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from hybrid.core.problem import record
from hybrid.core.text import counted
from hybrid.errors import known, with_code

Place = tuple[str, int]  # a file's name and a line


@record
class Finding:
    """A sentence about something wrong; `str` gives the sentence."""

    text: str
    code: str  # of `hybrid.errors.CODES`
    places: tuple[Place, ...] = ()  # lines to show

    def __post_init__(self) -> None:
        known(self.code)

    def __str__(self) -> str:
        return self.text

    @property
    def line(self) -> str:
        """The sentence with its code."""
        return with_code(self.text, self.code)

    def told(self, sources: Mapping[str, Sequence[str]], places: Iterable[Place]) -> Iterator[str]:
        """The report's lines: the sentence, and the source lines at these places."""
        yield f"  * {self.line}"
        for file, line in places:
            lines = sources.get(file, ())
            if 0 < line <= len(lines):
                yield f"      {line:>4}  {lines[line - 1].strip()}"

    def as_record(self) -> dict[str, str]:
        """Its entry in a JSON line."""
        return {"code": self.code, "text": self.text}


Mistake = tuple[str, str]  # a code, and a sentence with {A}, {B} and {C}
_MOST_TERMS = 2048  # of a sum whose weights are solved for
_MOST_EQUATIONS = 4096  # elements of C used, about


def mistake_in(c: np.ndarray, right: np.ndarray, a: np.ndarray, b: np.ndarray) -> Mistake | None:
    """A mistake that reproduces all wrong finite elements of C; None if no hypothesis does. `c`, `right`: in float64, without
    alpha and beta."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    wrong = (c != right) & np.isfinite(c)
    if not wrong.any():
        return None
    found = (text for make in (_turned, _misread, _miscounted) for text in make(c, a, b, wrong))
    return next(found, None)


def _turned(c: np.ndarray, a: np.ndarray, b: np.ndarray, wrong: np.ndarray) -> Iterator[Mistake]:
    """Row and column exchanged in the index of one or more matrices."""
    as_read = [(each, each.ravel().reshape(each.shape[::-1]).T) for each in (a, b)]
    for matrices in ("A", "B", "C", "AB", "ABC", "AC", "BC"):
        x, y = (both[letter in matrices] for both, letter in zip(as_read, "AB", strict=True))
        product = x @ y
        if _is(c, product.T.reshape(c.shape) if "C" in matrices else product, wrong):
            listed = " and ".join(filter(None, (", ".join(f"{{{each}}}" for each in matrices[:-1]), f"{{{matrices[-1]}}}")))
            stored = f"{listed} stored column by column" + ", as BLAS and Fortran have it (--layout columns)" * (
                matrices == "ABC"
            )
            text = f"row and column are exchanged in the index of {listed}: with {stored}, {{C}} would be right"
            yield "transposed-index", text


def _misread(c: np.ndarray, a: np.ndarray, b: np.ndarray, wrong: np.ndarray) -> Iterator[Mistake]:
    """A factor read with a wrong leading dimension, or from the other factor's memory."""
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
    """The matrix of the elements at row · stride + column; NaN beyond the end."""
    numbers = np.arange(rows)[:, None] * stride + np.arange(columns)
    return np.where(numbers < flat.size, flat[np.minimum(numbers, flat.size - 1)], np.nan)


def _miscounted(c: np.ndarray, a: np.ndarray, b: np.ndarray, wrong: np.ndarray) -> Iterator[Mistake]:
    """Terms of the sum left out, or added several times."""
    weights = _weights(c, a, b, wrong)
    if weights.any() and _is(c, (a * weights) @ b, wrong):
        yield "wrong-terms", _weighted(weights)


def _weights(c: np.ndarray, a: np.ndarray, b: np.ndarray, where: np.ndarray, unit: float = 0.0) -> np.ndarray:
    """How often the sums of these elements may contain the term of each k; all 0 if unknown. `unit`: the unit roundoff; 0 for
    exact sums."""
    rows, columns = np.nonzero(where)
    l, step = a.shape[1], max(1, len(rows) // _MOST_EQUATIONS)
    terms, values = a[rows[::step]] * b[:, columns[::step]].T, c[rows[::step], columns[::step]].astype("f8")[:, None]
    weights = np.zeros(l)
    if len(terms) < 2 or l > _MOST_TERMS:
        return weights
    near = 4 * (l + 2) * unit * abs(terms).sum(axis=1, keepdims=True)
    up_to = np.flatnonzero((abs(np.cumsum(terms, axis=1) - values) <= near).all(axis=0))
    alone = np.flatnonzero((abs(terms - values) <= near).all(axis=0))
    if len(up_to):
        weights[: up_to[0] + 1] = 1
    elif len(alone):
        weights[alone[-1]] = 1
    elif len(terms) >= l:
        weights = np.rint(np.linalg.lstsq(terms, values[:, 0], rcond=None)[0])
    return weights


def _weighted(weights: np.ndarray) -> str:
    """A sentence about a sum whose terms have these weights, which are not all 1."""
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
    several = np.flatnonzero((weights != 1) & (weights != 0))
    missing = f", and those of k = {_listed(without)} not at all" if len(without) else ""
    if not len(several):
        return f"the products of k = {_listed(without)} are not in the sum"
    return f"the products of k = {_listed(several)} are in the sum {weights[several[0]]:g} times{missing}"


def _listed(numbers: np.ndarray) -> str:
    return ", ".join(map(str, numbers[:4])) + (", …" if len(numbers) > 4 else "")


def _is(c: np.ndarray, made: np.ndarray, where: np.ndarray) -> bool:
    """Whether C equals `made` at these elements, if there are any."""
    return bool(where.any()) and bool((c[where] == made[where]).all())


def triangle_in(c: np.ndarray, never: np.ndarray, a: np.ndarray, b: np.ndarray) -> str:
    """What C is if it is a product of triangular matrices, or a triangle of a product; "" for neither. `never`: where nothing
    wrote it."""
    if len(set(a.shape)) > 1 and len(set(b.shape)) > 1:
        return ""
    parts: list[tuple[str, Any]] = [("", np.array), ("the lower triangle of ", np.tril), ("the upper triangle of ", np.triu)]
    for (of_a, x), (of_b, y), (of_c, z) in product(parts, repeat=3):
        is_inside = z(np.ones(c.shape)) == 1
        if (c == x(a.astype("f8")) @ y(b.astype("f8")))[is_inside].all() and (never | (c == 0))[~is_inside].all():
            return f"{of_c}{{C}} is that of {of_a}{{A}} · {of_b}{{B}}" if of_c else f"{{C}} is {of_a}{{A}} · {of_b}{{B}}"
    return ""


_PART = 0.1  # of C: if so much is right, a product was meant
_EXACT = 2**53  # smaller sums of integers are exact in float64
_WORDS = ("mul", "mm", "gemm", "prod")  # in the name of a kernel that means a product


class _Layout:
    """The matrices in one of eight layouts: each is row-major or column-major."""

    def __init__(self, arrays: list[np.ndarray], sizes: tuple[int, int, int], transposed: tuple[bool, ...]) -> None:
        n, l, m = sizes

        def matrix(array: np.ndarray, rows: int, columns: int, is_transposed: bool) -> np.ndarray:
            return array.reshape(columns, rows).T if is_transposed else array.reshape(rows, columns)

        x, y, c, old, writers = arrays
        self.x, self.y = (matrix(x, n, l, transposed[0]).astype("f8"), matrix(y, l, m, transposed[1]).astype("f8"))
        self.c, self.old, self.writers = (matrix(each, n, m, transposed[2]) for each in (c, old, writers))
        self.unit = 0.0 if c.dtype.kind == "i" else float(np.finfo(c.dtype).eps)
        self.product, self.size = self.x @ self.y, abs(self.x) @ abs(self.y)
        self.right = self.is_near(self.product, self.size)

    def is_near(self, expected: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Which elements are as expected, up to the rounding of sums of this size, or were not written by the launch."""
        if not self.unit:
            above = 64 - 8 * self.c.itemsize  # bits that an element does not have
            return (self.writers == 0) | ((self.c.astype("i8") - expected.astype("i8")) << above == 0)
        return (self.writers == 0) | (abs(self.c - expected) <= 4 * (self.x.shape[1] + 2) * self.unit * size)

    def is_meant(self, scales: list[float]) -> bool:
        """Whether C is alpha·product + beta·old C for some alpha and beta, or the product with negative elements as 0."""
        if self.right.all():
            return True
        old = np.where(np.isfinite(self.old), self.old, 0).astype("f8")
        most = np.unravel_index(abs(self.product).argmax(), self.product.shape)
        alphas = [1.0, *scales]
        # If all elements are alike, a partial sum is a multiple of the product, too.
        if self.product[most] and np.ptp(self.product) > 0.01 * abs(self.product[most]):
            alphas.append(float(self.c[most]) / self.product[most])
        for alpha, beta in product(alphas, (0.0, 1.0, *scales)):
            size = abs(alpha) * self.size + abs(beta * old)
            if alpha and math.isfinite(alpha) and self.is_near(alpha * self.product + beta * old, size).all():
                return True
        return bool(np.where(self.product > 0, self.right, self.c == 0).all())

    def is_elementwise(self) -> bool:
        """Whether C is an elementwise operation of square matrices."""
        if self.x.shape != self.y.shape or self.x.shape != self.c.shape:
            return False
        with np.errstate(all="ignore"):
            others = (self.x * self.y, self.x + self.y, self.x - self.y, self.x / self.y)
            return any(np.allclose(self.c, each, rtol=1e-6, equal_nan=True) for each in others)

    def explained(self, names: tuple[str, str]) -> Iterator[str]:
        """Mistakes that explain all of C."""
        if self.x.shape == self.y.shape == self.c.shape:
            for one, name, other in ((self.x, *names), (self.y, *names[::-1])):
                if self.is_near(one @ one, abs(one) @ abs(one)).all():
                    yield f"it is {name} · {name}, without {other}"
        weights = _weights(self.c, self.x, self.y, self.writers > 0, self.unit)
        if weights.any() and self.is_near((self.x * weights) @ self.y, self.size).all():
            yield _weighted(weights).replace("{C}", "it")

    def edges(self) -> str:
        """The rows or columns from which on all elements are wrong; "" for none."""
        texts = []
        for axis, what in ((1, "rows"), (0, "columns")):
            some_right = np.flatnonzero((self.right & (self.writers > 0)).any(axis=axis))
            wrong = np.flatnonzero(~self.right.all(axis=axis))
            if len(some_right) and len(beyond := wrong[wrong > some_right[-1]]):
                texts.append(f"all {what} from {beyond[0]} on")
        return " and ".join(texts)


def judged(event: dict[str, Any]) -> tuple[str, int, bool] | None:
    """Compare a launch with a product: what is wrong, with {N} for the name of array N, or ""; the instruction that wrote the
    first wrong element; and whether it is right for column-major matrices alone. None if the launch does not have the shape of a
    product, or computes something else."""
    (x, of_x, reads_x), (y, of_y, reads_y), (c, of_c, reads_c) = event["operands"]
    sizes = _sizes(of_x, of_y, of_c, event)
    *matrices, writers = event["arrays"]
    kind = {"f": "f4", "d": "f8", "i": "i4", "l": "i8"}[event["type"]]
    if "f" in kind and all((abs(each.view(kind)) < np.finfo(kind).tiny).all() for each in matrices[:2]):
        kind = kind.replace("f", "i")  # an element in a struct may be an integer
    arrays = [*(each.view(kind) for each in matrices), writers.view("u4")]
    if sizes is None or not writers.any():
        return None
    layouts = []
    for transposed in product((False, True), repeat=3):
        layouts.append(_Layout(arrays, sizes, transposed))
        if not (layouts[-1].size < (math.inf if "f" in kind else _EXACT)).all():  # as for NaN
            return None
        if layouts[-1].is_meant(event["scales"]):
            return "", 0, all(transposed)
    if not event["order"] and (reads_c or layouts[0].is_elementwise()):
        return None
    why, layout = next(((why, each) for each in layouts for why in each.explained((f"{{{x}}}", f"{{{y}}}"))), ("", layouts[0]))
    if not why:
        shares = [(each.right & (each.writers > 0) & (each.product != 0)).mean() for each in layouts]
        layout = layouts[int(np.argmax(shares))]
        says_so = any(word in event["kernel"].lower() for word in _WORDS) and (reads_x > of_x or reads_y > of_y)
        if max(shares) < _PART and not says_so:
            return None
        why = layout.edges()
    row, column = map(int, np.argwhere(~layout.right)[0])
    n, l, m = sizes
    is_now, right = float(layout.c[row, column]), float(layout.product[row, column])
    wrong = (
        f"{{{c}}}, which is not {{{x}}} ({n}×{l}) · {{{y}}} ({l}×{m}): {(~layout.right).sum():,} of {n * m:,} elements are "
        f"wrong, the first in row {row}, column {column}: {is_now:.7g} instead of {right:.7g}"
    )
    return "; ".join(filter(None, [wrong, why])), int(layout.writers[row, column]), False


def _sizes(x: int, y: int, c: int, event: dict[str, Any]) -> tuple[int, int, int] | None:
    """n, l and m for arrays with these numbers of elements; None unless they exist, and the launch's numbers or grid match."""
    if not x * y * c:
        return None
    n, l, m = (round(math.sqrt(first * second / third)) for first, second, third in ((x, c, y), (x, y, c), (y, c, x)))
    if (n * l, l * m, n * m) != (x, y, c):
        return None
    told = {1, *event["numbers"]}
    launch = zip(event["grid"], event["block"], strict=True)
    along = [range((blocks - 1) * threads + 1, blocks * threads + 1) for blocks, threads in launch]
    outer = (m in told or m in along[0]) and (n in told or n in along[1])
    return (n, l, m) if outer and (l in told or l in (n, m)) else None
