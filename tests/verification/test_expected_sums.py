# SPDX-License-Identifier: MIT
"""Parts of C that were computed again are checked by the sums that the device has made: no operand is read for it."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from support.faults import Planted

import hybrid
from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.execution.rank_check import RankCheck
from hybrid.verification import recompute, reexamine, wrong_sums
from hybrid.verification.alone import verify_alone
from hybrid.verification.expected_sums import ExpectedSums
from hybrid.verification.rounding import THRESHOLD, comparison_numbers, random_x

N, L, M, GROUP = 90, 70, 150, 64


def expected_of(a, b, *, exact=False):
    x = random_x(np.random.default_rng(1), [M], GROUP)
    starts = range(0, M, GROUP)
    wide = b.astype(np.float64)
    products = a.astype(np.float64) @ np.stack([(wide * x)[:, first : first + GROUP].sum(axis=1) for first in starts], axis=1)
    squares = np.square(wide * x).sum(axis=0)
    of_columns = np.array([[squares[first : first + GROUP].sum() for first in starts]])
    of_rows = np.square(a.astype(np.float64)).sum(axis=1, keepdims=True)
    numbers = comparison_numbers(Problem(N, L, M, a.dtype.name), GROUP)
    return ExpectedSums(Span(0, N), Span(0, M), GROUP, x, products, of_rows, of_columns, numbers, exact)


def operands(rng, data):
    a, b = rng.standard_normal((N, L)), rng.standard_normal((L, M))
    if data == "integers":
        return np.rint(9 * a), np.rint(9 * b)
    return a.astype(data), b.astype(data)


@pytest.mark.parametrize("data", ["float32", "float64", "integers"])
def test_a_right_part_passes_and_a_wrong_one_does_not(rng, data):
    a, b = operands(rng, data)
    expected, c = expected_of(a, b, exact=data == "integers"), a @ b
    for rows, columns in [(Span(0, N), Span(0, M)), (Span(7, 70), Span(64, 128)), (Span(64, N), Span(128, M))]:
        part, of_c = expected.part(rows, columns), c[rows.slice, columns.slice].copy()
        assert part.check(of_c).ok
        of_c[-1, -1] += 1
        check = part.check(of_c)
        assert not check.ok
        assert check.kind == ("exact" if data == "integers" else "freivalds")


def test_half_of_an_integer_is_no_integer(rng):
    a, b = operands(rng, "integers")
    c = a @ b
    c[3, [5, 6]] += 2.0**-30, -(2.0**-30)
    assert not expected_of(a, b, exact=True).check(c).ok


def test_what_cannot_be_judged_does_not_pass(rng):
    a, b = operands(rng, "float64")
    a[5] = np.nan
    with np.errstate(all="ignore"):
        c = a @ b
    expected = expected_of(a, b)
    assert expected.check(c).kind == "none"
    assert not expected.check(c).ok
    assert expected.part(Span(64, N), Span(0, 64)).check(c[64:, :64]).ok


def test_groups_of_columns_are_not_cut(rng):
    expected = expected_of(*operands(rng, "float64"))
    for rows, columns in [(Span(0, N), Span(32, 96)), (Span(0, N), Span(0, 100)), (Span(0, N + 1), Span(0, 64))]:
        assert expected.part(rows, columns) is None
    last = expected.part(Span(10, 20), Span(128, M))
    assert last.products.shape == (10, 1)


@pytest.mark.usefixtures("checked_on_the_device")
@pytest.mark.parametrize("panels", [{}, {"PANEL_ROWS": "33"}, {"PANEL_COLUMNS": "70"}, {"PANEL_COLUMNS": "96"}])
def test_after_a_fault_of_the_kernel_the_operands_are_read_only_to_multiply(rng, monkeypatch, panels):
    monkeypatch.setenv("HYBRID_STAGED", "1")
    for name, value in panels.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    a, b = rng.standard_normal((300, 200)), rng.standard_normal((200, 330))
    # Right sums may be suspected beside wrong ones, and whether their squares were wrong is told from the operands.
    monkeypatch.setattr(wrong_sums, "usual_largest", lambda sums: THRESHOLD)
    from_operands = []
    monkeypatch.setattr(recompute, "verify_alone", lambda *given: from_operands.append(1) or verify_alone(*given))
    in_panel = 1 if "PANEL_COLUMNS" in panels else 0
    Planted(monkeypatch, "multiply", lambda into, source, before: into.__setitem__((20, 30), 7e3), in_panel)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        c = hybrid.multiply(a, b, on_fault="repair")
    assert any(re.match("repaired: .* computed again", str(each.message)) for each in said)
    np.testing.assert_allclose(c, a @ b, atol=1e-10)
    assert bool(from_operands) == ("PANEL_COLUMNS" in panels)  # whose groups of columns are not those of a part


@pytest.mark.usefixtures("checked_on_the_device")
def test_a_fault_smaller_than_a_cpus_rounding_errors_is_named_by_a_few_elements(rng, monkeypatch):
    """Of a product from remainders, say: all elements would have to be compared with what they are in higher precision."""
    monkeypatch.setenv("HYBRID_STAGED", "1")
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((300, 4000), (4000, 330)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    rounding, of_a_cpu = (float(np.abs(c - exact).max()) for c in (exact.astype(np.float32), a @ b))
    noise = rng.uniform(0.5, 1.0, (50, 50)) * rng.choice([-1, 1], (50, 50)) * min(25 * rounding, 1.5 * of_a_cpu)

    def spoil(into, source, before):
        into[...] = exact
        into[60:110, 100:150] += noise

    from_operands, terms = [], []
    monkeypatch.setattr(recompute, "verify_alone", lambda *given: from_operands.append(1) or verify_alone(*given))
    original = reexamine.exact_sums
    monkeypatch.setattr(reexamine, "exact_sums", lambda a, b: terms.append(b.size) or original(a, b))
    Planted(monkeypatch, "multiply", spoil)
    with pytest.warns(RuntimeWarning, match=r"repaired: rank 0 on .* multiplied wrong; rows \S+, columns \S+ of C were computed"):
        c = hybrid.multiply(a, b, on_fault="repair")
    assert not from_operands
    assert sum(terms) <= 40 * 4000
    assert np.abs(c - exact).max() <= 2 * of_a_cpu


@pytest.mark.usefixtures("checked_on_the_device")
def test_a_fraction_that_no_sum_shows_is_repaired_wherever_it_is(rng, monkeypatch):
    monkeypatch.setenv("HYBRID_STAGED", "1")
    a, b = np.rint(300 + 300 * rng.random((300, 50))), np.rint(300 + 300 * rng.random((50, 700)))
    Planted(monkeypatch, "multiply", lambda into, source, before: into.__setitem__((200, 500), into[200, 500] + 2.0**-29))
    with pytest.warns(RuntimeWarning, match="repaired: rank 0 on .* multiplied wrong; rows 192:256, columns 0:700 of C"):
        c = hybrid.multiply(a, b, on_fault="repair")
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.usefixtures("checked_on_the_device")
def test_where_the_devices_sums_are_wrong_the_operands_decide_and_nobody_is_named(rng, monkeypatch):
    monkeypatch.setenv("HYBRID_STAGED", "1")
    a, b = rng.standard_normal((300, 200)), rng.standard_normal((200, 330))
    from hybrid.devices.cpu_check import CpuCheckOperations

    original = CpuCheckOperations.subtract_product

    def spoiled(operations, a, y, difference, *measured):
        enqueue = original(operations, a, y, difference, *measured)

        def spoil(after):
            event = enqueue(after)
            difference[17, 2] += 5e4
            return event

        return spoil

    monkeypatch.setattr(CpuCheckOperations, "subtract_product", spoiled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c = hybrid.multiply(a, b, on_fault="repair")
    np.testing.assert_allclose(c, a @ b, atol=1e-10)


@pytest.mark.usefixtures("checked_on_the_device")
def test_after_a_wrong_copy_the_devices_sums_are_not_asked(rng, monkeypatch):
    monkeypatch.setenv("HYBRID_STAGED", "1")
    asked = []
    monkeypatch.setattr(RankCheck, "expected_sums", lambda *_: asked.append(1) or [])
    a, b = rng.standard_normal((100, 80)), rng.standard_normal((80, 70))
    Planted(monkeypatch, "copy_in", lambda into, source, before: into.__setitem__((3, 3), 9.0), always=True)
    with pytest.warns(RuntimeWarning, match="repaired: "):
        c = hybrid.multiply(a, b, on_fault="repair")
    assert not asked
    np.testing.assert_allclose(c, a @ b, atol=1e-10)
