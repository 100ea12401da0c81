# SPDX-License-Identifier: MIT
"""Products whose check is tested: operands of many kinds, the forms in which ranks multiply them, and what a refusal names."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.distributed import whole

import hybrid
from hybrid.testing import pretend

# Settings under which one process multiplies: on the CPU in place, or as a device with memory of its own does.
WAYS: dict[str, dict[str, Any]] = {
    "in place": {},
    "staged": {"staged": True},
    "panels": {"staged": True, "panel_rows": 13, "panel_columns": 70},
    "slabs": {"staged": True, "panel_rows": 40, "slab_rows": 50},
    "out of core": {"staged": True, "gpu_memory": "500k", "panel_rows": 13, "panel_columns": 200},
}
# Under which several ranks do.
WAYS_OF_RANKS: dict[str, dict[str, Any]] = {
    "in place": {},
    "host": {"staged": True, "transport": "host"},
    "host, panels": {"staged": True, "transport": "host", "panel_rows": 5, "panel_columns": 64},
    "peers": {"staged": True, "transport": "peers", "panel_rows": 5, "panel_columns": 64},
    "peers, slabs": {"staged": True, "transport": "peers", "panel_rows": 5, "slab_rows": 20},
    "a node a rank": {"staged": True, "ranks_per_node": 1, "transport": "host", "panel_columns": 64, "message_bytes": 1000},
    "a node a rank, in place": {"ranks_per_node": 1},
    "two ranks a node": {"staged": True, "ranks_per_node": 2, "transport": "host", "panel_rows": 7},
}


@contextmanager
def way(name: str, **more: Any) -> Iterator[None]:
    """The settings of a way, with memory of devices full of NaN at first."""
    with pretend(poison=True, **{**WAYS, **WAYS_OF_RANKS}[name], **more):
        yield


Matrices = tuple[np.ndarray, np.ndarray]
_Make = Callable[[np.random.Generator, int, int, int], Matrices]


def _normal(rng: np.random.Generator, n: int, l: int, m: int) -> Matrices:
    return rng.standard_normal((n, l)), rng.standard_normal((l, m))


def _uniform(rng: np.random.Generator, n: int, l: int, m: int) -> Matrices:
    return rng.random((n, l)), rng.random((l, m))


def _changed(make: _Make, change: Callable[[np.random.Generator, np.ndarray, np.ndarray], object]) -> _Make:
    def changed(rng: np.random.Generator, n: int, l: int, m: int) -> Matrices:
        a, b = make(rng, n, l, m)
        change(rng, a, b)
        return a, b

    return changed


def _scaled(of_a: Any = 1, of_b: Any = 1, make: _Make = _normal) -> _Make:
    """`of_a`, `of_b`: a number, or a function of the generator and the matrix."""

    def change(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
        for matrix, factor in ((a, of_a), (b, of_b)):
            matrix *= factor(rng, matrix) if callable(factor) else factor

    return _changed(make, change)


def _each(axis: int, low: float, high: float) -> Callable[[np.random.Generator, np.ndarray], np.ndarray]:
    """A power of ten for each row (0) or column (1)."""
    return lambda rng, x: 10.0 ** rng.uniform(low, high, (len(x), 1) if axis == 0 else (1, x.shape[1]))


def _outliers(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return np.exp(4 * rng.standard_normal(x.shape))


def _sparse(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return rng.random(x.shape) < 0.05


def _hilbert(rng: np.random.Generator, n: int, l: int, m: int) -> Matrices:
    rows, inner, columns = (np.arange(size) for size in (n, l, m))
    return 1 / (rows[:, None] + inner + 1.0), 1 / (inner[:, None] + columns + 1.0)


def _cosines(rng: np.random.Generator, n: int, l: int, m: int) -> Matrices:
    inner = np.arange(l) + 0.5
    return np.cos(np.pi / l * np.outer(np.arange(n), inner)), np.cos(np.pi / l * np.outer(inner, np.arange(m)))


def _cancelling(rng: np.random.Generator, n: int, l: int, m: int) -> Matrices:
    half, b = rng.random((n, -(-l // 2))), rng.random((-(-l // 2), m))
    return np.hstack([half, -half])[:, :l], np.vstack([b, b * (1 + rng.random() / 1000)])[:l]


def _walks(rng: np.random.Generator, n: int, l: int, m: int) -> Matrices:
    return _cosines(rng, n, l, m)[0], 128 + rng.standard_normal((l, m)).cumsum(axis=0)


def _integers(largest: int) -> _Make:
    return lambda rng, n, l, m: tuple(rng.integers(-largest, largest + 1, s).astype(float) for s in ((n, l), (l, m)))  # type: ignore[return-value]


def _zero_lines(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
    a[1::3], b[:, ::4], b[2::5] = 0, 0, 0


def _with(value: float, of_b: bool = False) -> Callable[[np.random.Generator, np.ndarray, np.ndarray], None]:
    def change(rng: np.random.Generator, a: np.ndarray, b: np.ndarray) -> None:
        matrix = b if of_b else a
        matrix[rng.integers(len(matrix)), rng.integers(matrix.shape[1])] = value

    return change


KINDS: dict[str, _Make] = {
    "normal": _normal,
    "uniform": _uniform,
    "Cauchy": lambda rng, n, l, m: (rng.standard_cauchy((n, l)), rng.standard_cauchy((l, m))),
    "sparse": _scaled(_sparse, _sparse),
    "zero lines": _changed(_normal, _zero_lines),
    "zeros": lambda rng, n, l, m: (np.zeros((n, l)), np.zeros((l, m))),
    "graded rows": _scaled(_each(0, -9, 9), _each(1, -9, 9)),
    "graded along k": _scaled(_each(1, -6, 6), _each(0, -6, 6)),
    "outliers": _scaled(_outliers, _outliers),
    "Hilbert": _hilbert,
    "cosines": _cosines,
    "walks": _walks,
    "cancelling": _cancelling,
    "constant columns": lambda rng, n, l, m: (np.full((n, l), rng.random()), np.tile(rng.random((l, 1)), (1, m))),
    "ones and a large one": lambda rng, n, l, m: (np.ones((n, l)), np.vstack([np.full((1, m), 2.0**24), np.ones((l - 1, m))])),
    "tiny": _scaled(1e-20, 1e-20),
    "subnormal": _scaled(1e-30, 1e-12),
    "huge": _scaled(1e16, 1e16),
    "overflowing": _scaled(1e30, 1e25),
    "integers": _integers(9),
    "large integers": _integers(2**23),
    "NaN in A": _changed(_uniform, _with(np.nan)),
    "infinity in A": _changed(_normal, _with(np.inf)),
    "NaN in B": _changed(_normal, _with(np.nan, of_b=True)),
    "infinity in B": _changed(_integers(9), _with(-np.inf, of_b=True)),
    "a huge element": _changed(_normal, _with(1e30)),
}


def operands(rng: np.random.Generator, kind: str, shape: tuple[int, int, int], dtype: Any = "float64") -> Matrices:
    """A and B of a kind. Halves, integers and complex numbers are made of the same numbers, as far as their type has them."""
    a, b = KINDS[kind](rng, *shape)
    wanted = np.dtype(dtype)
    with np.errstate(all="ignore"):
        if wanted.kind == "c":
            other = KINDS[kind](rng, *shape)
            return tuple((x + 1j * y).astype(wanted) for x, y in zip((a, b), other, strict=True))  # type: ignore[return-value]
        return a.astype(wanted), b.astype(wanted)


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product in higher precision."""
    wide = np.result_type(a, b, np.longdouble if a.dtype != np.float32 else np.float64)
    with np.errstate(all="ignore"):
        return a.astype(wide) @ b.astype(wide)


def rounding(a: np.ndarray, b: np.ndarray) -> float:
    """The largest rounding error of any element of NumPy's product."""
    return float(np.abs(a @ b - exact(a, b)).max())


def assert_right(a: np.ndarray, b: np.ndarray, c: np.ndarray, about: object = "") -> None:
    """Each element is A·B's, within the error that any order of summation may have; integers are equal."""
    if a.dtype.kind in "iu" and c.dtype.kind in "iu":
        np.testing.assert_array_equal(c, a.astype(object) @ b.astype(object), str(about))
        return
    right, of_type = exact(a, b), np.finfo(c.dtype)
    of_sums = np.finfo(np.float32) if c.dtype == np.float16 else of_type  # of halves, rounded once
    with np.errstate(all="ignore"):
        sizes = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)  # of positive terms, which lose next to nothing
        most = (a.shape[1] + 2) * (of_sums.eps * sizes + of_sums.tiny)
        if of_sums is not of_type:
            most += of_type.eps * np.abs(right) + of_type.smallest_subnormal
        overflows = ~(sizes < of_type.max / 4)
        wrong = ~(np.abs(c - right) <= most) & ~overflows
    assert c.shape == right.shape, about
    assert not wrong.any(), f"{about}: {wrong.sum()} elements are wrong, the first at {np.argwhere(wrong)[0].tolist()}"


def place_of(tile: np.ndarray, whole: np.ndarray) -> tuple[int, int]:
    """The row and column of a matrix where this tile of it begins, but for rounding."""
    height, width = tile.shape
    for row, column in np.argwhere(np.isclose(whole, tile[0, 0], rtol=1e-3)).tolist():
        part = whole[row : row + height, column : column + width]
        if part.shape == tile.shape and np.allclose(part.astype(tile.dtype), tile, rtol=1e-3, atol=1e-3):
            return row, column
    raise AssertionError("the tile is no part of the matrix")


FORMS = ("root", "shared", "row blocks", "blocks", "stack")


def forms_of(name: str) -> list[str]:
    """Those that can be multiplied in this way: shared arrays have one node, and blocks travel from host to host."""
    settings = {**WAYS, **WAYS_OF_RANKS}[name]
    without = {"shared" if "ranks_per_node" in settings else "", "blocks" if settings.get("transport") == "peers" else ""}
    return [form for form in FORMS if form not in without]


def product(comm: Any, form: str, a: np.ndarray, b: np.ndarray, root: int = 0, **how: Any) -> np.ndarray:
    """The product in this form, whole on every rank. All of them have A and B. A stack has the matrices twice."""
    size, rank = (1, 0) if comm is None else (comm.size, comm.rank)

    def rows_of(matrix: np.ndarray) -> tuple[int, int]:
        return len(matrix) * rank // size, len(matrix) * (rank + 1) // size

    if form == "row blocks":
        return whole(comm, hybrid.multiply(*(hybrid.RowBlock(x[slice(*rows_of(x))].copy()) for x in (a, b)), comm=comm, **how))
    if form == "blocks":
        blocks = (hybrid.Block2D(x[slice(*rows_of(x))].copy(), x.shape, [rows_of(x)], [(0, x.shape[1])]) for x in (a, b))
        return whole(comm, hybrid.multiply(*blocks, comm=comm, **how))
    first, second = (a, b) if rank == root else (None, None)
    if form == "shared":
        first, second = (hybrid.empty(x.shape, x.dtype, comm=comm, root=root) for x in (a, b))
        if rank == root:
            first[...], second[...] = a, b
    elif form == "stack" and rank == root:
        first, second = np.stack([a, a]), np.stack([b, b])
    if comm is not None:
        comm.Barrier()
    c = hybrid.multiply(first, second, comm=comm, root=root, **how)
    if form == "stack" and rank == root:
        if "repair" in how.values():  # what is computed again is rounded otherwise
            assert_right(a, b, c[0])
        else:
            np.testing.assert_array_equal(c[0], c[1])
        c = c[1]
    return c if comm is None else comm.bcast(c, root)


@dataclass(frozen=True)
class Named:
    """What a line about a fault names: numbers and names, whatever words stand between them."""

    ranks: tuple[int, ...]  # the one whose fault it is first
    matrix: str | None
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def rank(self) -> int | None:
        return self.ranks[0] if self.ranks else None

    def holds(self, row: int, column: int) -> bool:
        return self.rows[0] <= row < self.rows[1] and self.columns[0] <= column < self.columns[1]


def named(line: object) -> Named:
    text = str(line)

    def span(what: str) -> tuple[int, int]:
        found = re.search(rf"{what}s? (\d+)(?::(\d+))?", text)
        first, end = found.groups() if found else (0, 1 << 60)
        return int(first), int(end or int(first) + 1)

    matrix = re.search(r" of ([ABC])\b", text)
    return Named(tuple(map(int, re.findall(r"rank (\d+)", text))), matrix and matrix[1], span("row"), span("column"))  # type: ignore[arg-type]


def repaired(run: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What `run` returns, and what warnings say was repaired. Others may not be."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = run()
    assert all(issubclass(each.category, RuntimeWarning) for each in said), said
    lines = [str(each.message) for each in said if str(each.message).startswith("repaired")]
    assert not any("\n" in line for line in lines)
    return result, lines
