# SPDX-License-Identifier: MIT
"""What checks of a product on devices and on the host share: how large rounding errors may be, the result of a check, and which
parts of C are wrong."""

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

# How large a difference between C·x and A·(B·x) may rounding errors explain?
#
# With u the unit roundoff, the sum of l products for c[i,j] errs by about u²/3 times the squares of all partial sums, as a
# variance, if rounding errors have random signs. Partial sums that drift to c have l·c²/3 of squares; those that walk at
# random have l·Σₖ(a[i,k]·b[k,j])²/2. The first is known from C; the second is taken from the norms of A's row and of B's
# columns. Both together, over the columns of a group and with the squares of x, are the variance that is to be expected at
# most.
#
# Matrix units that multiply operands of 16 bits add some products at a time, and cut off what float32 does not hold of the
# sum: always towards zero, so that such errors add up. Of l/16 of them, each of u times c, the square counts as well.
#
# Most products are more accurate than that, because their sums are divided into parts. So the sizes of all differences, in
# units of the expected ones, tell the accuracy of this very product, and only a difference that is far beyond the others is a
# fault. But a product that is less accurate than expected everywhere (one of operands that were rounded to bfloat16, say) is
# wrong as well.

# A difference of more standard deviations than this is no rounding error: 8 are exceeded with probability 1.2e-15, by any of a
# million sums with probability 1.2e-9.
THRESHOLD = 8.0
_SMALLEST_X = 64
_LEAST_SPREAD = 1 / 16  # of the sizes: where most differences are exactly 0, the others are still allowed this much
_LOOKED_AT_AGAIN = 0.05  # the share of right products whose elements are looked at, in vain, which takes some milliseconds
_MANY = 50  # sums
_ENOUGH = 1000  # sizes from which the product's accuracy is told
FEW = 100  # enough where a wrong guess only makes some sums be looked at again
_MEAN_OF_NORMAL = 0.7979  # of |z|, z normally distributed with variance 1
_TERMS_OF_A_STEP = 16  # that a matrix unit adds to a sum at a time (of float16 and bfloat16)
_EXACT_UP_TO = {"float32": 2**24, "float64": 2**53}  # the type holds every integer up to this magnitude


def smallest_x(group: int) -> int:
    """The smallest magnitude of an element of x, where columns are summed in groups of so many.

    All magnitudes are integers from this to below twice this, different from each other within a group: then no two columns of C
    can be exchanged, nor two equal errors cancel, without being seen.
    """
    return max(_SMALLEST_X, group)


def random_x(random: np.random.Generator, widths: Sequence[int], group: int) -> np.ndarray:
    """A random x for column panels of these widths, whose columns are summed in groups of so many.

    Where the elements of a group happen to add up to a small sum, an error that is the same in all columns would not show. So
    some signs are turned until the sum is as far from 0 as that of random signs usually is.
    """
    lengths = np.array([min(group, width - first) for width in widths for first in range(0, width, group)], np.intp)
    there = np.arange(group) < lengths[:, None]
    smallest = smallest_x(group)
    sizes = np.tile(np.arange(smallest, 2 * smallest), (len(lengths), 1))
    x = random.permuted(sizes, axis=1)[:, :group] * random.choice([-1.0, 1.0], size=there.shape) * there
    total, usual = x.sum(axis=1), np.sqrt(np.square(x).sum(axis=1))
    against = x * np.where(total < 0, -1.0, 1.0)[:, None] < 0
    gained = np.cumsum(2 * np.abs(x) * against, axis=1) - 2 * np.abs(x) * against  # by turning those before
    turned = against & (np.abs(total)[:, None] + gained < usual[:, None])
    return np.where(turned, -x, x)[there]


@lru_cache(maxsize=16)  # which every call of the same shapes asks for again
def comparison_numbers(problem: Problem, group: int) -> np.ndarray:
    """What kernels/check.cu needs to know of this problem's products: a relative variance, 1/l, what tiny numbers that are
    flushed to zero make, the largest square that is judged; and the largest integers of which sums may be exact."""
    of_type, terms = np.finfo(problem.dtype), max(1, problem.l)
    u_product, u_check = float(of_type.eps) / 2, 2.0**-53
    # The check's own rounding: in A·(B·x), as in the product; in B·x and C·x, as in sums of a few terms.
    steps = terms / 9 + ((terms / _TERMS_OF_A_STEP) ** 2 if problem.short_operands else 0.0)
    variance = steps * u_product**2 + (terms / 9 + 3) * u_check**2
    # Subnormal numbers may be flushed to zero, in A, in B or as a product.
    flushed = float(of_type.tiny) * 2 * smallest_x(group) * group * terms**0.5
    largest_square = min(1e300, (float(of_type.max) / 4 * smallest_x(group)) ** 2) if problem.dtype == "float32" else 1e300
    numbers = np.array([variance, 1 / terms, flushed, largest_square, min(_EXACT_UP_TO[problem.dtype], most_exact(group))])
    numbers.flags.writeable = False
    return numbers


@record
class Sums:
    """What the comparison of one rank's sums found."""

    error: float  # the largest difference, in standard deviations of those of neighbouring rows
    count: int  # of differences that are not 0
    not_judged: int  # sums where A·B may overflow, or holds NaN or infinities
    judged: int
    largest_a: float  # magnitudes; NOT_INTEGRAL where not all are integers
    largest_b: float
    largest_c: float

    @classmethod
    def of(cls, summary: np.ndarray, rows: int, groups: int, *largest: float) -> Sums:
        """From the summary that `compare_sums` makes of so many rows and groups."""
        # Without NumPy's methods, which are slower: every product waits for this, and the device for the next one.
        count, open_ = np.add.reduce(summary[:, 1::2]).tolist()
        error = float(np.maximum.reduce(summary[:, 2] / _spreads(summary, rows, count), initial=0.0))
        return cls(error, int(count), int(open_), rows * groups - int(open_), *largest)


def spread_of(totals: np.ndarray | float, counts: np.ndarray | float) -> np.ndarray:
    """The standard deviations of sizes of right products, from their totals and counts: at most 1, which is what is expected."""
    return np.minimum(np.maximum(totals / np.maximum(counts, 1.0) / _MEAN_OF_NORMAL, _LEAST_SPREAD), 1.0)


def _spreads(summary: np.ndarray, rows: int, count: float) -> np.ndarray:
    """For each ROWS_TOGETHER of these rows, with so many sizes in all, the standard deviation that the differences of a right
    product have there.

    As many rows are taken together as have enough differences. Not all: a product may be more accurate in some rows than in
    others, where its sums are divided into parts.
    """
    if not len(summary):
        return np.ones(0)
    totals, counts = summary[:, 0], summary[:, 1]
    together = 1 + int(_ENOUGH / max(1.0, count / rows)) // ROWS_TOGETHER
    if together > 1:
        starts = np.arange(0, len(summary), together)
        totals, counts = np.add.reduceat(totals, starts), np.add.reduceat(counts, starts)
    spreads = spread_of(totals, counts)
    spreads[counts < _ENOUGH] = 1.0  # the last rows may be few
    return np.repeat(spreads, together)[: len(summary)] if together > 1 else spreads


def errors_of_rows(found: np.ndarray) -> np.ndarray:
    """The largest difference of each row, in standard deviations of those of neighbouring rows. `found`: what `compare_sums` of
    kernels/check.cu says of each row."""
    summary = summary_of(found)
    spreads = _spreads(summary, len(found), summary[:, 1].sum())
    return found[:, 2] / np.repeat(spreads, ROWS_TOGETHER)[: len(found)]


@lru_cache(maxsize=64)
def usual_largest(sums: int) -> float:
    """The size, in standard deviations, that the largest of so many differences of a right product exceeds with the probability
    _LOOKED_AT_AGAIN; with less for many sums, whose largest ones exceed those of a normal distribution."""
    ratio = max(1, sums) * (1 + sums / _MANY) / _LOOKED_AT_AGAIN
    size = math.sqrt(2 * math.log(ratio))
    for _ in range(3):  # ratio · erfc(size / √2) = 1, by its expansion for large sizes
        size = math.sqrt(2 * math.log(ratio * math.sqrt(2 / math.pi) / size))
    return min(THRESHOLD, size)


def is_exact_product(dtype: str, terms: int, largest_a: float, largest_b: float) -> bool:
    """Whether integer dot products of this length and these magnitudes are exact; False if that is unknown."""
    return dtype == "float64" and terms * max(1.0, largest_a) * max(1.0, largest_b) <= _EXACT_UP_TO[dtype]


def is_exact(problem: Problem, group: int, largest_a: float, largest_b: float) -> bool:
    """Whether every sum is exact, in the product and in its check, because all elements are integers that are small enough."""
    bound = problem.l * max(1.0, largest_a) * max(1.0, largest_b)
    return bound <= _EXACT_UP_TO[problem.dtype] and bound <= most_exact(group)


def most_exact(group: int) -> int:
    """The largest sums of products of integers with which the check's own sums, of `group` columns times x, are exact as well."""
    return _EXACT_UP_TO["float64"] // ((2 * smallest_x(group) - 1) * group)


MOST_NAMED = 3  # wrong rows of one product, or of one rank, in a message
MOST_SUSPECTS = 16  # rows: in fewer, all sums that look wrong become suspects; else one in each of so many rows


@record
class Fault:
    """Something that is wrong with a product. As text it is its words.

    `code`: of `hybrid.errors.CODES`. `rank`: whose device was wrong, and `row` of C; None where that is not known.
    """

    text: str
    code: str = CheckFailed.code
    rank: int | None = None
    row: int | None = None

    def of(self, what: str, first: int = 0) -> Fault:
        """The same fault, with `what` it is about before its words. `first`: the row of the whole C from which its row counts."""
        return replace(self, text=f"{what}: {self.text}", row=None if self.row is None else first + self.row)

    def __str__(self) -> str:
        return self.text


@record
class Check:
    """The result of checking one product.

    `error` and `tolerance` are in standard deviations of this product's rounding errors; in an exact check `error` is the number
    of sums that differ, and `tolerance` is 0.
    """

    kind: str  # "exact", "freivalds", or "none" where NaN, infinity or overflow leaves nothing to compare
    error: float
    tolerance: float
    ok: bool
    faults: tuple[Fault, ...] = ()  # one at least where it is not ok
    note: str = ""  # what a right product has that is unusual
    # The host has to check as well, because the device left sums unjudged (for NaN, infinity or overflow, or because the sums are
    # rounded though the product is exact), or found differences that only a look at the elements can tell from rounding errors.
    undecided: bool = False
    repaired: tuple[str, ...] = ()  # what was wrong, where, and how it was computed again; all other fields: after the repair
    sampled: int = 1  # one cache line in this number was compared, of what was copied to and from devices; 1: all

    @property
    def code(self) -> str:
        """What is wrong, as one of `hybrid.errors.CODES`."""
        return self.faults[0].code

    def refusal(self) -> str:
        """What is wrong, in one line."""
        more = f" (and {len(self.faults) - 1} more)" if len(self.faults) > 1 else ""
        return f"the product is wrong: {self.faults[0]}{more}"

    def of(self, what: str, first: int = 0) -> Check:
        """The same check, with `what` it is about ("product 2", say) before each of its lines. `first`: as in `Fault.of`."""
        repaired = tuple(f"{what}: {line}" for line in self.repaired)
        return replace(self, faults=tuple(fault.of(what, first) for fault in self.faults), repaired=repaired)

    def settled(self, by_host: Check) -> Check:
        """The result of both checks, where this one, a device's, is undecided: the host's. If the host found a fault, the faults
        that the devices named come first."""
        if not by_host.ok:
            return replace(by_host, faults=self.faults + by_host.faults, sampled=self.sampled)
        unusual = f"differences of {self.error:.1f} standard deviations are rounding errors: the host found no fault"
        return replace(by_host, note=by_host.note or ("" if self.ok else unusual), sampled=self.sampled)


def settle(check: Check | None, *, warns: bool) -> None:
    """CheckFailed where the product is wrong. Where `warns`, this rank warns of what was repaired."""
    if check is None:
        return
    if not check.ok:
        raise CheckFailed(check.refusal(), code=check.code)
    for line in check.repaired if warns else ():
        warn(f"repaired: {line}")


@record
class Suspect:
    """A sum of C·x that differs by more than the usual rounding errors. Only its elements tell whether it is wrong."""

    row: int  # of C
    columns: Span  # of the group that was summed
    size: float  # of the difference, in units of those to be expected
