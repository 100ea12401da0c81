"""Times of the lectures' kernels; every product that is timed is checked against float64."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
from lecture_places import GpuPlace, Place

from hybrid.arrays.fill import fill_rows
from hybrid.core.spans import Span
from hybrid.devices.c_loops import compiled_loops
from hybrid.errors import CheckFailed
from hybrid.kernels.catalogue import Form, Kernel, named

TIMED = 0.03  # seconds of launches between two events: the clock of a GPU at rest is slow
MOST_LAUNCHES = 2000
WHOLE = 2_000_000_000  # multiply-adds up to which every element is checked
SAMPLED = 32  # rows and columns that are checked of larger products
_FILL_THREADS = 4


# --- kernels and matrices


def kernel_of(name: str) -> Kernel:
    kernel = named(name)
    assert kernel is not None, name
    return kernel


def with_block(name: str, side: int) -> Kernel:
    """The kernel in blocks of side×side threads, each an element of C."""
    kernel = kernel_of(name)
    forms: dict[str, tuple[Form, ...]] = {dtype: (Form((side, side), (side, side)),) for dtype in kernel.forms}
    return replace(kernel, name=f"{name} {side}×{side}", function=name, forms=forms)


def matrices(fill: str, dtype: str, n: int, l: int, m: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A and B as the runner's --fill makes them."""
    made = []
    for matrix, rows, columns in (("A", n, l), ("B", l, m)):
        array = np.empty((rows, columns), dtype)
        fill_rows(array, Span(0, rows), fill=fill, seed=seed, matrix=matrix, threads=_FILL_THREADS)
        made.append(array)
    return made[0], made[1]


def refuse_wrong(what: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """CheckFailed if C is further from A·B, in float64, than rounding in any order explains.

    Large products are looked at in some rows and columns, the last among them; NaN is found anywhere.
    """
    (n, l), m = a.shape, b.shape[1]
    every = slice(None)
    random = np.random.default_rng()
    some = [np.append(random.integers(0, length, SAMPLED), length - 1) for length in (n, m)]
    parts: list[tuple[Any, Any]] = [(every, every)] if n * l * m <= WHOLE else [(some[0], every), (every, some[1])]
    wrong = int(np.isnan(c).sum())
    for rows, columns in parts:
        left, right = a[rows].astype(np.float64, copy=False), b[:, columns].astype(np.float64, copy=False)
        allowed = (l + 2) * np.finfo(c.dtype).eps * (abs(left) @ abs(right))
        wrong += int((~(abs(c[rows][:, columns] - left @ right) <= allowed)).sum())
    if wrong:
        raise CheckFailed(f"{what} is wrong for {c.dtype.name} {n}×{l} · {l}×{m}: {wrong} elements")


def allocated(place: Place, like: np.ndarray) -> Any:
    rows, columns = like.shape
    return place.allocate(rows, columns, like.dtype.name)


# --- timings


def kernel_seconds(place: Place, kernel: Kernel, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
    """Of one launch, by events around several on a GPU; the first one's on the CPU, where it only is to be right."""
    c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
    try:
        on_a, on_b, on_c = (allocated(place, matrix) for matrix in (a, b, c))
        place.copy(on_a, a)
        place.copy(on_b, b)

        place.poison(on_c)
        begin = place.mark()
        place.launch(kernel, on_a, on_b, on_c)
        first = place.seconds(begin, place.mark())
        place.copy(c, on_c)
        refuse_wrong(f"kernel {kernel.name}", a, b, c)
        if not isinstance(place, GpuPlace):
            return [first]
        (once,) = place.seconds_each(kernel, on_a, on_b, on_c, 1, 1)
        return place.seconds_each(kernel, on_a, on_b, on_c, min(MOST_LAUNCHES, math.ceil(TIMED / once)), repeat)
    finally:
        place.release()


def whole_seconds(place: Place, kernel: Kernel, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
    """Allocation, copies in, kernel and copy out, by events around them all. A GPU does it once more before."""
    times = []
    for index in range(-int(place.device == "cuda"), repeat):
        c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
        try:
            begin = place.mark()
            on_a, on_b, on_c = (allocated(place, matrix) for matrix in (a, b, c))
            place.copy(on_a, a)
            place.copy(on_b, b)
            if index < 0:
                place.poison(on_c)
            place.launch(kernel, on_a, on_b, on_c)
            place.copy(c, on_c)
            seconds = place.seconds(begin, place.mark())
        finally:
            place.release()
        refuse_wrong(f"kernel {kernel.name}", a, b, c)
        if index >= 0:
            times.append(seconds)
    return times


def loops_seconds(name: str, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
    """Of the sequential loops on one core. DeviceUnavailable without a C compiler."""
    multiply = compiled_loops(name, a.dtype.name)
    times = []
    for _ in range(repeat):
        c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
        began = time.perf_counter()
        multiply(a, b, c)
        times.append(time.perf_counter() - began)
        refuse_wrong(name, a, b, c)
    return times
