# SPDX-License-Identifier: MIT
"""With on_fault="repair" a product that fails its check is made right in every element, a warning at the root tells whose device
was wrong, and what cannot be made right is refused (docs/failures.md, Repairs; docs/check.md, Repair)."""

import numpy as np
import pytest
from support.checked import FORMS, WAYS, assert_right, forms_of, named, operands, product, repaired, way
from support.selection import pairs_first

import hybrid
from hybrid.errors import CheckFailed, UsageError
from hybrid.testing import plant

N, L, M = 261, 71, 149
DTYPES = ["float64", "float32"]
HOWS = ["element", "sign", "nan", "rows swapped", "columns swapped", "stale row", "nothing", "lowest bit"]
# A lowest bit of a product is rounding; before a check by the host alone, that of an operand is, too.


@pytest.mark.parametrize(
    ("kind", "way_", "how", "form", "data"),
    pairs_first(
        ["copy in", "multiply", "copy out"],
        list(WAYS),
        HOWS,
        FORMS,
        ["normal", "uniform", "integers", "graded rows"],
    ),
)
def test_a_fault_is_repaired_and_told(rng, kind, way_, how, form, data):
    if way_ == "in place":
        kind = "multiply"  # nothing is copied
    if kind == "multiply" and (how == "lowest bit" or data == "graded rows"):
        how, data = "element", "normal"
    a, b = operands(rng, data, (N, L, M), DTYPES[int(rng.integers(2))])
    with way(way_), np.errstate(all="ignore"):
        with plant(kind, how=how) as planted:
            c, lines = repaired(lambda: product(None, form, a, b, on_fault="repair"))
        assert planted.done
        assert_right(a, b, c)
        assert lines
        assert {named(line).rank for line in lines} == {0}
        c, lines = repaired(lambda: product(None, form, a, b, on_fault="repair"))
    assert not lines, "the fault was one product's"
    assert_right(a, b, c)


def test_only_what_was_asked_for_is_repaired(rng):
    a, b = operands(rng, "normal", (N, L, M))
    with plant("multiply"), pytest.raises(CheckFailed):
        hybrid.multiply(a, b)
    with plant("multiply"):
        c, lines = repaired(lambda: hybrid.multiply(a, b, on_fault="repair", check=False))
    assert not lines
    with pytest.raises(AssertionError):
        assert_right(a, b, c)
    with pytest.raises(UsageError) as refusal:
        hybrid.multiply(a, b, on_fault="repare")
    assert refusal.value.code == "setting"


@pytest.mark.parametrize("check", [True, "host"])
def test_what_is_wrong_twice_is_refused(rng, check):
    a, b = operands(rng, "normal", (N, L, M))
    with plant("multiply", times=None) as planted, pytest.raises(CheckFailed) as refusal:
        hybrid.multiply(a, b, on_fault="repair", check=check)
    assert planted.seen == 2
    assert refusal.value.code == "check-product"


@pytest.fixture
def own(comm):
    """A communicator that remembers no rank's faults."""
    duplicate = comm.Dup()
    yield duplicate
    duplicate.Free()


RANKS = ["in place", "host", "peers", "a node a rank", "a node a rank, in place"]  # ways of several ranks


@pytest.mark.exhaustive(above=2)
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", ["root", "shared", "row blocks", "blocks"])
@pytest.mark.parametrize("name", RANKS)
def test_on_several_ranks(own, rng, name, form):
    comm, kinds = own, ["multiply"] if "in place" in name else ["multiply", str(rng.choice(["copy in", "copy out"]))]
    if form not in forms_of(name):
        pytest.skip("shared arrays have one node")
    for kind in kinds:
        a, b = operands(rng, "normal", (60 * comm.size, L, M))
        root, victim = (int(rng.integers(comm.size)) for _ in "rv")
        if name == "peers" and form == "root" and kind != "multiply":
            victim = root  # whose process copies for all ranks
        with way(name):
            product(
                comm, form, *(matrix[:9, :9].copy() for matrix in (a, b)), root
            )  # whether peers can be used is tried by copies
            with plant(kind, rank=victim, how="element") as planted:
                c, lines = repaired(lambda a=a, b=b, root=root: product(comm, form, a, b, root, on_fault="repair"))
        told = comm.allgather(lines)
        teller = 0 if "blocks" in form else root
        assert comm.bcast(planted.done, victim), (kind, victim)
        assert_right(a, b, c, kind)
        assert [rank for rank in range(comm.size) if told[rank]] == [teller], told
        if kind == "multiply":
            (line,) = told[teller]
            assert named(line).rank == victim


@pytest.mark.mpi(min_size=2)
def test_rows_that_differ_between_nodes_are_refused(comm, rng):
    """Nobody knows which are right."""
    a, b = operands(rng, "normal", (60 * comm.size, L, M))
    with way("a node a rank"):
        with plant("arrive", rank=1, how="element"), pytest.raises(CheckFailed) as refusal:
            product(comm, "root", a, b, on_fault="repair")
        assert comm.allgather((refusal.value.code, str(refusal.value))) == [("check-exchange", str(refusal.value))] * comm.size
        assert_right(a, b, product(comm, "root", a, b, on_fault="repair"))
