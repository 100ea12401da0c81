# SPDX-License-Identifier: MIT
"""What is made of B stays from product to product of row blocks, as long as B's elements are the same, and no longer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hybrid
from hybrid.devices.modular import ModularProduct
from hybrid.devices.remainder_launches import RemainderLaunches
from hybrid.selection import decision

pytestmark = pytest.mark.needs("compiler")

N, L, M = 60, 140, 50


@pytest.fixture
def made_of(monkeypatch):
    """For each product the operands whose remainders, and magnitudes, were made."""
    products: list[list[tuple[object, object]]] = []
    once, begin = RemainderLaunches._once, ModularProduct.begin

    def noted(self, key, make, matrix=None):
        if key[0] in ("remainders", "magnitudes"):
            products[-1].append(key[:2])
        return once(self, key, make, matrix)

    def begun(self):
        products.append([])
        begin(self)

    monkeypatch.setattr(RemainderLaunches, "_once", noted)
    monkeypatch.setattr(ModularProduct, "begin", begun)
    return products


ALL = {("remainders", "A"), ("remainders", "B"), ("magnitudes", "A"), ("magnitudes", "B")}
OF_A, OF_B = ({(what, operand) for what in ("remainders", "magnitudes")} for operand in "AB")


def multiplied(a, b, **more):
    return hybrid.multiply(hybrid.RowBlock(a), hybrid.RowBlock(b), device="emulate", precision="fast", **more).array


def alone(a, b):
    """By arrays, of which nothing is kept."""
    return hybrid.multiply(a, b, device="emulate", precision="fast")


def test_b_is_reduced_once_for_several_products(made_of, rng):
    b = rng.standard_normal((L, M))
    every_a = [rng.standard_normal((N, L)) for _ in range(3)]
    every_c = [multiplied(a, b) for a in every_a]
    assert [("remainders", "B") in made for made in made_of] == [True, False, False]
    assert set(made_of[-1]) == OF_A
    for a, c in zip(every_a, every_c, strict=True):
        np.testing.assert_array_equal(c, alone(a, b))
        assert set(made_of[-1]) == ALL, "of arrays nothing is kept"


def changed(b, number):
    """Elements, a line of each kind, and the order of lines."""
    if number < 3:
        row, column, value = ((7, 9, 5.0), (L - 1, M - 1, np.nextafter(b[-1, -1], 9)), (0, 0, -b[0, 0]))[number]
        b[row, column] = value
    else:
        b[...] = np.roll(b, 1, axis=number - 3)


@pytest.mark.parametrize("check", [True, False])
def test_what_is_written_to_b_is_noticed(made_of, rng, check):
    a, b = rng.standard_normal((N, L)), rng.standard_normal((L, M))
    multiplied(a, b, check=check)
    found = []
    for number in range(5):
        changed(b, number)
        found.append((b.copy(), multiplied(a, b, check=check)))
        assert set(made_of[-1]) >= OF_B
        for _ in range(2):
            multiplied(a, b, check=check)
            assert ("remainders", "B") not in made_of[-1]
        assert OF_B.isdisjoint(made_of[-1]), "the guard is asked ahead about what is there, if that has not changed lately"
    for before, c in found:
        np.testing.assert_array_equal(c, alone(a, before))


def test_the_guard_is_asked_before_the_host_waits_and_again_where_b_was_written_to_against_expectation(monkeypatch, rng):
    order: list[str] = []

    def noted(name):
        as_usual = getattr(ModularProduct, name)

        def method(self, *given):
            order.append(name)
            return as_usual(self, *given)

        monkeypatch.setattr(ModularProduct, name, method)

    for name in ("_ask_guard", "_summary_of"):
        noted(name)
    a, b = rng.standard_normal((N, L)), rng.standard_normal((L, M))
    measured, asked = ["_summary_of"] * 2, ["_ask_guard"]
    for _ in range(2):
        multiplied(a, b)
    found = []
    for step, wanted in ((0, asked + measured), (1, asked + measured + asked), (1, asked + measured), (0, asked + measured)):
        b[0, 0] += step
        order.clear()
        found.append((b.copy(), multiplied(a, b)))
        assert order == wanted
    multiplied(np.rint(a), np.rint(b))  # integers, which need no guard
    order.clear()
    found.append((b, multiplied(a, b)))
    assert order == measured + asked
    for before, c in found:
        np.testing.assert_array_equal(c, alone(a, before))


def test_another_product_in_between_leaves_nothing(made_of, rng):
    a, b = rng.standard_normal((N, L)), rng.standard_normal((L, M))
    first = multiplied(a, b)
    multiplied(rng.standard_normal((2 * N, L + 9)), rng.standard_normal((L + 9, 3 * M)))
    np.testing.assert_array_equal(multiplied(a, b), first)
    assert set(made_of[-1]) == ALL


@pytest.mark.mpi(min_size=2)
def test_a_product_on_a_grid_in_between_leaves_nothing(comm, seed, monkeypatch):
    """Its panels lie in the same memory."""
    rng = np.random.default_rng([seed, comm.rank])
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "1")
    operands = [(rng.standard_normal((n, l * comm.size)), rng.standard_normal((l, m))) for n, l, m in ((N, L, M), (50, 120, 40))]

    def multiplied_on(grid, number):
        monkeypatch.setenv("HYBRID_GRID", grid)
        return multiplied(*operands[number], comm=comm)

    first = multiplied_on("rows", 0)
    multiplied_on(f"1x{comm.size}", 1)
    np.testing.assert_array_equal(multiplied_on("rows", 0), first)


def test_another_arithmetic_makes_them_anew(made_of, rng):
    b = rng.standard_normal((L, M))
    every_a = [rng.standard_normal((N, L)) for _ in range(3)]
    every_a[1] *= np.exp(every_a[2])  # whose guard takes one modulus more
    every_c = [multiplied(a, b) for a in every_a]
    assert all(("remainders", "B") in made for made in made_of)
    assert [("magnitudes", "B") in made for made in made_of[::2]] == [True, False]
    for a, c in zip(every_a, every_c, strict=True):
        np.testing.assert_array_equal(c, alone(a, b))


def test_another_precision_in_between_leaves_nothing(made_of, monkeypatch, rng):
    """As on GPUs, where `auto` takes remainders, too: of more moduli, in the same memory."""
    as_fast = decision.choose_precision
    monkeypatch.setattr(decision, "choose_precision", lambda settings, *of: as_fast(replace(settings, precision="fast"), *of))
    a, b = rng.standard_normal((N, L)), rng.standard_normal((L, M))
    first = multiplied(a, b)
    more_exact = hybrid.multiply(hybrid.RowBlock(a), hybrid.RowBlock(b), device="emulate", precision="auto").array
    assert not np.array_equal(more_exact, first)
    np.testing.assert_array_equal(multiplied(a, b), first)
    assert set(made_of[-1]) == ALL


def test_poisoned_memory_is_not_taken_for_remainders(made_of, monkeypatch, rng):
    a, b = rng.standard_normal((N, L)), rng.standard_normal((L, M))
    first = multiplied(a, b)
    monkeypatch.setenv("HYBRID_POISON", "1")
    for _ in range(2):
        np.testing.assert_array_equal(multiplied(a, b), first)
        assert set(made_of[-1]) == ALL
