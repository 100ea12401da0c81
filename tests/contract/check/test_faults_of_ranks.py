# SPDX-License-Identifier: MIT
"""Wherever a rank is wrong, or what it receives, all ranks refuse the product with the same code and line, which names that rank;
nobody hangs, and the next product is right (docs/check.md, docs/failures.md)."""

import numpy as np
import pytest
from support.checked import WAYS_OF_RANKS, assert_right, forms_of, named, operands, product, rounding, way
from support.selection import exhaustive

from hybrid.errors import CheckFailed
from hybrid.testing import plant

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.exhaustive(above=2)]
L, M = 71, 149
OF_PRODUCTS = ["element", "sign", "zero", "nan", "stale row", "rows swapped", "columns swapped", "nothing", "lost k"]
OF_COPIES = ["lowest bit", "element", "sign", "stale row", "rows swapped", "columns swapped", "shifted column", "nothing"]
# Of one row, which is all that some messages have, elements that have changed places are noticed in one row of 32.
OF_MESSAGES = ["lowest bit", "element", "sign", "stale row", "rows swapped", "nothing"]
KINDS = ["normal", "uniform", "integers", "large integers"]
STAGED = [name for name, settings in WAYS_OF_RANKS.items() if "staged" in settings]
each_way = pytest.mark.parametrize("name", WAYS_OF_RANKS)
each_draw = pytest.mark.parametrize("draw", exhaustive(range(1), range(10)))


def case(comm, rng, kind="normal", dtype="float64"):
    return operands(rng, kind, (13 * comm.size + 4, L, M), dtype)


def drawn(rng, *some):
    return (each[int(rng.integers(len(each)))] for each in some)


def refused_alike(comm, codes, form, a, b, root=0, about=None, **how):
    """What the refusal of all ranks names."""
    with np.errstate(all="ignore"), pytest.raises(CheckFailed) as refusal:
        pytest.fail(f"not refused: {form}, {about}: {product(comm, form, a, b, root, **how)}")
    said = refusal.value.code, refusal.value.exit_code, str(refusal.value)
    assert comm.allgather(said) == [said] * comm.size
    assert said[0] in codes, said
    assert said[1] == 3
    assert "\n" not in said[2]
    return named(said[2])


@each_draw
@each_way
def test_a_wrong_multiplication(comm, rng, name, draw):
    for _ in range(4 // comm.size):  # four ranks take longer than two
        how, kind, form, victim, root = drawn(rng, OF_PRODUCTS, KINDS, forms_of(name), range(comm.size), range(comm.size))
        a, b = case(comm, rng, kind)
        with way(name):
            with plant("multiply", rank=None if form == "stack" else victim, how=how) as planted:  # it has matrices for two only
                found = refused_alike(comm, {"check-product"}, form, a, b, root, (how, kind, victim))
            wrong = [rank for rank, done in enumerate(comm.allgather(planted.done)) if done]
            assert set(wrong) & set(found.ranks), (how, form, found, wrong)
    with way(name):
        assert_right(a, b, product(comm, form, a, b, root), "the next one")


@each_draw
@each_way
def test_the_smallest_faults_wherever_they_are(comm, rng, name, draw):
    smallest = 60 if name in STAGED else 20  # of its largest rounding errors
    for dtype in ("float32", "float64")[: 4 // comm.size]:
        form, victim = drawn(rng, [form for form in forms_of(name) if form != "stack"], range(comm.size))
        a, b = case(comm, rng, dtype=dtype)
        error, places = rounding(a, b) * rng.choice([-1, 1]) * rng.uniform(smallest, 1.5 * smallest), rng.random(2)

        def spoil(into, source, before, error=error, places=places):
            into[tuple((places * into.shape).astype(int))] += error

        with way(name), plant("multiply", rank=victim, how=spoil) as planted:
            found = refused_alike(comm, {"check-product"}, form, a, b, 0)
        assert comm.bcast(planted.done, victim), form
        assert victim in found.ranks, (form, found)


@each_draw
@pytest.mark.parametrize("name", STAGED)
def test_a_wrong_copy(comm, rng, name, draw):
    for kind in ("copy in", "copy out"):
        how, form, dtype, root, victim = drawn(
            rng, OF_COPIES, forms_of(name), ["float64", "float32"], range(comm.size), range(comm.size)
        )
        driven = "peers" in name and form in ("root", "stack")  # the root's process copies for all ranks
        victim, code = root if driven else victim, "check-copy"
        if form == "blocks":  # whose copies have no checksums: only what the product shows is found
            how, kind, code = "element", "copy in", "check-product"
        a, b = case(comm, rng, dtype=dtype)
        with way(name):
            assert_right(a, b, product(comm, form, a, b, root), "whether peers can be used is tried, too, by copies")
            with plant(kind, rank=victim, how=how) as planted:
                found = refused_alike(comm, {code}, form, a, b, root)
            assert comm.bcast(planted.done, victim), (how, form)
        assert form == "blocks" or found.matrix in ("C" if kind == "copy out" else "AB")
        # What one rank loads wrong of B its peers get from it.
        assert driven or found.rank == victim or (found.matrix == "B" and "peers" in name), (how, form, found)


@each_draw
@each_way
def test_what_arrives_wrong(comm, rng, name, draw):
    """Between devices and nodes: panels of B, rows of A, C on its way back, matrices of stacks. On CPUs that multiply in place,
    some of it only where the product shows it."""
    how, form, victim, at = drawn(rng, OF_MESSAGES[name not in STAGED :], forms_of(name), range(comm.size), range(2))
    a, b = case(comm, rng)
    with way(name):
        assert_right(a, b, product(comm, form, a, b), "before")
        with plant("arrive", rank=victim, times=0) as counted:
            product(comm, form, a, b)
        if not (seen := comm.bcast(counted.seen, victim)):
            return  # nothing comes from others
        with plant("arrive", rank=victim, at=min(at, seen - 1), how=how) as planted:
            codes = {"check-copy", "check-exchange"} if name in STAGED else {"check-product", "check-exchange"}
            found = refused_alike(comm, codes, form, a, b)
        assert comm.bcast(planted.done, victim)
        assert found.rank is not None
        assert found.rank == victim or "peers" not in name
        assert_right(a, b, product(comm, form, a, b), "the next one")


@pytest.mark.parametrize("check", [True, "host", False])
def test_the_settings_of_the_check(comm, rng, check):
    """By the host a wrong copy shows in the product; without a check nothing shows."""
    a, b = case(comm, rng)
    with way("host"), plant("copy in", rank=comm.size - 1, how="element"):
        if check:
            refused_alike(comm, {"check-copy"} if check is True else {"check-product"}, "root", a, b, check=check)
        else:
            c = product(comm, "root", a, b, check=check)
            with pytest.raises(AssertionError):
                assert_right(a, b, c)


def test_rounding_is_no_fault_on_any_rank(comm):
    """Sums in which a float32 loses each term, in equal measure on all ranks."""
    a, b = np.ones((8, 20_000), np.float32), np.ones((20_000, 1), np.float32)
    b[0] = 2**24

    def lose(into, source, before):
        into[...] = 2**24

    for name in ("in place", "host", "a node a rank"):
        with way(name), plant("multiply", how=lose):
            assert (product(comm, "root", a, b) == 2**24).all()
