# SPDX-License-Identifier: MIT
"""Shared by the checks on devices and on the host: bounds of rounding errors, the result of a check, faults and suspects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from hybrid.core.problem import Problem, Span, record
from hybrid.core.text import warn
from hybrid.devices.check_operations import summary_of
from hybrid.errors import CheckFailed
from hybrid.planning.schedule import ROWS_TOGETHER

# The model of rounding errors in C·x - A·(B·x)
#
# Let u be the unit roundoff. With random signs, the rounding error of c[i,j], a sum of l products, has a variance of about
# u²/3 times the sum of its squared partial sums. Partial sums that grow steadily to c have squares of l·c²/3 in total; random
# walks have l·Σₖ(a[i,k]·b[k,j])²/2. The first follows from C, the second from the norms of A's row and B's columns. Both
# together, times the squares of x, summed over the columns of a group, are the largest variance to expect.
#
# Matrix units with 16-bit operands add several products at a time and truncate the sum to float32, always towards zero. Such
# errors add up: l/16 of them, of u·c each, add (l/16·u·c)² to the variance.
#
# The size of a difference is its ratio to this expected standard deviation. Most products are more accurate than the model,
# because kernels split their sums. So the sizes of all differences tell the accuracy of this product, and only a size far
# beyond the others is a fault. But a product that is less accurate than the model everywhere (of operands rounded to
# bfloat16, say) is wrong as well.

# A larger difference, in standard deviations, is no rounding error: 8 are exceeded with probability 1.2e-15, by any of a million
# sums with probability 1.2e-9.
THRESHOLD = 8.0
_SMALLEST_X = 64
_LEAST_SPREAD = 1 / 16  # of the sizes: where most differences are exactly 0, the others are still allowed this much
_FALSELY_SUSPECTED = 0.05  # the share of right products that are suspected in vain, which costs some milliseconds
_ENOUGH = 1000  # nonzero differences, to estimate the product's accuracy
FEW = 100  # the same where a wrong estimate only recomputes some elements
_MEAN_OF_NORMAL = 0.7979  # of |z|, z normally distributed with variance 1
TERMS_OF_A_STEP = 16  # products that a matrix unit adds to a sum at a time (float16 and bfloat16)
_EXACT_UP_TO = {"float32": 2**24, "float64": 2**53}  # the type holds every integer up to this magnitude


def smallest_x(group: int) -> int:
    """The smallest magnitude in x, for sums over `group` columns.

    Magnitudes are integers from this to below twice this, all different within a group, so that exchanged columns of C and two
    equal errors of opposite sign always change the sum.
    """
    return max(_SMALLEST_X, group)


def random_x(random: np.random.Generator, widths: Sequence[int], group: int) -> np.ndarray:
    """A random x for column panels of these widths, for sums over `group` columns.

    If the elements of a group happened to add up to nearly 0, the same error in all its columns would not show. So signs are
    flipped until the sum is as far from 0 as sums with random signs usually are.
    """
    lengths = np.array([min(group, width - first) for width in widths for first in range(0, width, group)], np.intp)
    there = np.arange(group) < lengths[:, None]
    smallest = smallest_x(group)
    sizes = np.tile(np.arange(smallest, 2 * smallest), (len(lengths), 1))
    x = random.permuted(sizes, axis=1)[:, :group] * random.choice([-1.0, 1.0], size=there.shape) * there
    total, usual = x.sum(axis=1), np.sqrt(np.square(x).sum(axis=1))
    against = x * np.where(total < 0, -1.0, 1.0)[:, None] < 0
    gained = np.cumsum(2 * np.abs(x) * against, axis=1) - 2 * np.abs(x) * against  # by the flips before
    flipped = against & (np.abs(total)[:, None] + gained < usual[:, None])
    return np.where(flipped, -x, x)[there]


@lru_cache(maxsize=16)  # every call with the same shapes asks again
def comparison_numbers(problem: Problem, group: int) -> np.ndarray:
    """This problem's constants for kernels/check.cu: the relative variance of rounding errors, 1/l, the error from subnormal
    numbers flushed to zero, the largest square that is judged, and the largest magnitude of integers with exact sums."""
    of_type, terms = np.finfo(problem.dtype), max(1, problem.l)
    u_product, u_check = float(of_type.eps) / 2, 2.0**-53
    # The check's own rounding: in A·(B·x), as in the product; in B·x and C·x, as in sums of a few terms.
    steps = terms / 9 + ((terms / TERMS_OF_A_STEP) ** 2 if problem.short_operands else 0.0)
    variance = steps * u_product**2 + (terms / 9 + 3) * u_check**2
    # Subnormal numbers may be flushed to zero, in A, in B or as a product.
    flushed = float(of_type.tiny) * 2 * smallest_x(group) * group * terms**0.5
    largest_square = min(1e300, (float(of_type.max) / 4 * smallest_x(group)) ** 2) if problem.dtype == "float32" else 1e300
    numbers = np.array([variance, 1 / terms, flushed, largest_square, min(_EXACT_UP_TO[problem.dtype], most_exact(group))])
    numbers.flags.writeable = False
    return numbers


@record
class Sums:
    """The result of comparing one rank's sums."""

    error: float  # the largest difference, in standard deviations of those of neighbouring rows
    count: int  # of nonzero differences
    not_judged: int  # sums where A·B may overflow, or holds NaN or infinities
    judged: int
    largest_a: float  # magnitudes; NOT_INTEGRAL where not all are integers
    largest_b: float
    largest_c: float

    @classmethod
    def of(cls, summary: np.ndarray, rows: int, groups: int, *largest: float) -> Sums:
        """From the summary that `compare_sums` makes."""
        # Ufuncs, which are faster than array methods: every product waits for this.
        count, open_ = np.add.reduce(summary[:, 1::2]).tolist()
        error = float(np.maximum.reduce(summary[:, 2] / _spreads(summary, rows, count), initial=0.0))
        return cls(error, int(count), int(open_), rows * groups - int(open_), *largest)


def spread_of(totals: np.ndarray | float, counts: np.ndarray | float) -> np.ndarray:
    """The standard deviation of the sizes in a right product, from their total and count: at most 1, the model's."""
    return np.minimum(np.maximum(totals / np.maximum(counts, 1.0) / _MEAN_OF_NORMAL, _LEAST_SPREAD), 1.0)


def _spreads(summary: np.ndarray, rows: int, count: float) -> np.ndarray:
    """For each ROWS_TOGETHER rows, the standard deviation that the differences of a right product have there. `count`: nonzero
    differences in all rows.

    It is estimated from just enough neighbouring rows to have _ENOUGH differences: where a kernel splits sums, a product is more
    accurate in some rows than in others.
    """
    if not len(summary):
        return np.ones(0)
    totals, counts = summary[:, 0], summary[:, 1]
    together = 1 + int(_ENOUGH / max(1.0, count / rows)) // ROWS_TOGETHER
    if together > 1:
        starts = np.arange(0, len(summary), together)
        totals, counts = np.add.reduceat(totals, starts), np.add.reduceat(counts, starts)
    spreads = spread_of(totals, counts)
    spreads[counts < _ENOUGH] = 1.0  # the last part may be short
    return np.repeat(spreads, together)[: len(summary)] if together > 1 else spreads


def errors_of_rows(found: np.ndarray) -> np.ndarray:
    """The largest difference of each row, in standard deviations of those of neighbouring rows. `found`: the results of
    `compare_sums` in kernels/check.cu, by row."""
    summary = summary_of(found)
    spreads = _spreads(summary, len(found), summary[:, 1].sum())
    return found[:, 2] / np.repeat(spreads, ROWS_TOGETHER)[: len(found)]


@lru_cache(maxsize=64)
def usual_largest(sums: int) -> float:
    """The size, in standard deviations, that the largest of `sums` differences of a right product exceeds with probability
    _FALSELY_SUSPECTED. Their tails are heavier than a normal distribution's: measured, as those of `sums` times as many."""
    ratio = max(1, sums) ** 2 / _FALSELY_SUSPECTED
    size = math.sqrt(2 * math.log(ratio))
    for _ in range(3):  # ratio · erfc(size / √2) = 1, by its expansion for large sizes
        size = math.sqrt(2 * math.log(ratio * math.sqrt(2 / math.pi) / size))
    return min(THRESHOLD, size)


def is_exact_product(dtype: str, terms: int, largest_a: float, largest_b: float) -> bool:
    """Whether integer dot products of this length and these magnitudes are exact; False if that is unknown."""
    return dtype == "float64" and terms * max(1.0, largest_a) * max(1.0, largest_b) <= _EXACT_UP_TO[dtype]


def is_exact(problem: Problem, group: int, largest_a: float, largest_b: float) -> bool:
    """Whether every sum of the product and of its check is exact, because all elements are small enough integers."""
    bound = problem.l * max(1.0, largest_a) * max(1.0, largest_b)
    return bound <= _EXACT_UP_TO[problem.dtype] and bound <= most_exact(group)


def most_exact(group: int) -> int:
    """The largest magnitude of integers in C for which the check's own sums, of `group` columns times x, are exact as well."""
    return _EXACT_UP_TO["float64"] // ((2 * smallest_x(group) - 1) * group)


MOST_NAMED = 3  # wrong rows of one product, or of one rank, in a message
MOST_SUSPECTS = 16  # rows: if fewer look wrong, all their wrong sums become suspects; else one sum in each of this many rows


@record
class Fault:
    """An error found in a product; str() gives its text.

    `code`: of `hybrid.errors.CODES`. `rank`: whose device was wrong; `row`: of C. Either is None if unknown.
    """

    text: str
    code: str = CheckFailed.code
    rank: int | None = None
    row: int | None = None

    def of(self, what: str, first: int = 0) -> Fault:
        """The same fault of a part of C: its text begins with `what`, and row `first` of C is the part's first."""
        return replace(self, text=f"{what}: {self.text}", row=None if self.row is None else first + self.row)

    def __str__(self) -> str:
        return self.text


@record
class Check:
    """The result of checking one product.

    `error` and `tolerance` are in standard deviations of this product's rounding errors; in an exact check `error` is the number
    of sums that differ, and `tolerance` is 0.
    """

    kind: str  # "exact", "freivalds", or "none" if NaN, infinity or overflow leaves nothing to compare
    error: float
    tolerance: float
    ok: bool
    faults: tuple[Fault, ...] = ()  # at least one unless ok
    note: str = ""  # about a right product: what is unusual
    # The host must check as well: the device left sums unjudged (NaN, infinity, overflow, or rounded sums of an exact product),
    # or found differences that only recomputed elements can tell from rounding errors.
    undecided: bool = False
    repaired: tuple[str, ...] = ()  # what was wrong, where, and how it was recomputed; the other fields hold after the repair
    sampled: int = 1  # one of this many cache lines of each copy to and from devices was compared; 1: all

    @property
    def code(self) -> str:
        """The first fault's, one of `hybrid.errors.CODES`."""
        return self.faults[0].code

    def refusal(self) -> str:
        """The faults, in one line."""
        more = f" (and {len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
        return f"the product is wrong: {self.faults[0]}{more}"

    def of(self, what: str, first: int = 0) -> Check:
        """The same check of a part of C: each of its lines begins with `what` ("product 2", say). `first`: as in `Fault.of`."""
        repaired = tuple(f"{what}: {line}" for line in self.repaired)
        return replace(self, faults=tuple(fault.of(what, first) for fault in self.faults), repaired=repaired)

    def settled(self, by_host: Check) -> Check:
        """The host's result, which settles this undecided one of devices. If the host found a fault, the faults that the devices
        named come first."""
        if not by_host.ok:
            return replace(by_host, faults=self.faults + by_host.faults, sampled=self.sampled)
        unusual = f"differences of {self.error:.1f} standard deviations are rounding errors: the host found no fault"
        return replace(by_host, note=by_host.note or ("" if self.ok else unusual), sampled=self.sampled)


def settle(check: Check | None, *, warns: bool) -> None:
    """Raise CheckFailed if the product is wrong. With `warns`, this rank warns of repairs."""
    if check is None:
        return
    if not check.ok:
        raise CheckFailed(check.refusal(), code=check.code)
    for line in check.repaired if warns else ():
        warn(f"repaired: {line}")


@record
class Suspect:
    """A sum of C·x that differs by more than usual rounding errors. Only its recomputed elements tell whether it is wrong."""

    row: int  # of C
    columns: Span  # the group that was summed
    size: float  # of the difference, relative to the expected standard deviation
