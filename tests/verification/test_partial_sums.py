# SPDX-License-Identifier: MIT
"""Rounding errors in the orders in which kernels add."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.verification.partial_sums import Deviations, in_orders, wrong_columns

TURNS = (1, 2, 4, 8, 16, 32)


def exact(a, b):
    return a.astype(np.longdouble) @ b.astype(np.longdouble)


@pytest.mark.parametrize("scale", [1.0, 2.0**500, 2.0**-500])
@pytest.mark.parametrize("terms", [1, 5, 300, 5000])
def test_the_norms_are_those_of_all_partial_sums(rng, scale, terms):
    a, b = rng.standard_normal(terms), rng.standard_normal((terms, 3)) * scale
    found = in_orders(a, b, np.zeros(3, np.longdouble), exact(a, b))
    own = a[:, None] * (b / scale)
    for order, turns in enumerate(TURNS):
        lanes = [own[lane::turns].cumsum(axis=0) for lane in range(turns)]
        together = np.cumsum([lane[-1] if len(lane) else np.zeros(3) for lane in lanes], axis=0)[1:]
        wanted = sum(np.square(lane).sum(axis=0) for lane in lanes) + np.square(together).sum(axis=0)
        np.testing.assert_allclose(found.norms[order] / scale, np.sqrt(wanted), rtol=1e-12)
    plain = np.add.accumulate(own, axis=0)[-1].astype(np.longdouble) - exact(a, b / scale)
    np.testing.assert_allclose(found.errors[0] / scale, plain.astype(np.float64), rtol=1e-3, atol=1e-30)


def test_parts_add_up(rng):
    a, b, none = rng.standard_normal(640), rng.standard_normal((640, 3)), np.zeros(3, np.longdouble)
    whole = in_orders(a, b, none, exact(a, b))
    first = in_orders(a[:320], b[:320], none, exact(a[:320], b[:320]))
    second = in_orders(a[320:], b[320:], exact(a[:320], b[:320]), exact(a[320:], b[320:]))
    np.testing.assert_allclose((first + second).norms[0], whole.norms[0], rtol=1e-6)


def test_next_to_nothing_that_is_added_makes_no_error():
    a, b = np.ones(1000), np.full((1000, 1), 1e-30)
    b[0] = 1
    assert in_orders(a, b, np.zeros(1, np.longdouble), exact(a, b)).norms[0, 0] < 1.001


def in_units(*orders, drift=0.0):
    return Deviations(np.array(orders, float), drift + np.resize([-1.0, 1.0], np.shape(orders)))


def test_only_what_no_order_explains_is_wrong():
    elsewhere = [in_units(np.linspace(-1, 1, 40), np.linspace(-0.1, 0.1, 40))]
    assert wrong_columns(in_units([7, 9, 9], [0.7, 0.7, 9]), elsewhere) == (2,)
    assert wrong_columns(in_units([np.nan, 0, 0], [np.nan, 0, 0]), elsewhere) == (0,)


def test_errors_of_one_sign_are_wrong_unless_sums_that_are_made_so_have_such():
    errors, random = np.full(1600, 2.5), np.linspace(-1, 1, 1600)
    assert wrong_columns(in_units(errors, errors), [in_units(random, random)]) == tuple(range(1600))
    assert wrong_columns(in_units(errors, errors, drift=0.4), [in_units(random, random)]) == ()
    alike = Deviations(np.array([errors, errors]), np.full((2, 1600), 0.01))
    assert wrong_columns(alike, [in_units(random, random)]) == ()


@pytest.mark.parametrize("elsewhere", [[], [in_units([1e-3] * 40, [1e-3] * 40)]])
def test_where_little_is_known_from_elsewhere_much_is_allowed(elsewhere):
    assert wrong_columns(in_units([15], [15], drift=2), elsewhere) == ()
    assert wrong_columns(in_units([17], [17], drift=2), elsewhere) == (0,)
