# SPDX-License-Identifier: MIT
"""Residues modulo the prime of the check: exact for every integer that float64 holds."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from hybrid.verification.modular import Modular


@given(st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=40), st.integers(0, 99))
@example([2**53, 2**53 - 1, -(2**53), 1 - 2**53, 0], 0)
def test_residues_are_congruent_and_small(numbers, seed):
    modular = Modular(np.random.default_rng(seed), 3, 1)
    prime, found = int(modular._prime), modular._residues(np.array(numbers, np.float64))
    assert all((number - int(residue)) % prime == 0 for number, residue in zip(numbers, found, strict=True))
    assert np.abs(found).max() <= prime + 8


def test_a_product_with_a_vector_is_that_of_python_s_integers(rng):
    matrix, modular = rng.integers(-(2**53), 2**53, (40, 70)).astype(np.float64), Modular(rng, 70, 2)
    exact = [sum(int(x) * int(y) for x, y in zip(row, modular.x, strict=True)) for row in matrix]
    found = modular.times(matrix, modular.x)
    assert all((int(one) - other) % int(modular._prime) == 0 for one, other in zip(found, exact, strict=True))
    assert not modular.differ(found, np.array([float(one % int(modular._prime)) for one in exact])).any()
