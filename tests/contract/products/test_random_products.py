# SPDX-License-Identifier: MIT
"""`hybrid.multiply` gives the product of any two arrays, in any form, exactly or as accurately as its type allows: whatever their
types and layouts are, whatever is asked for beside them, and however it is carried out. Of several ranks the root gets the same
product and the others None, whatever the nodes, grids, devices and transports are."""

import pytest
from support import cases
from support.needs import lacking

RANKS = pytest.mark.mpi(min_size=2)
SHARED = ("hybrid.empty",) * 4


def drawn(request: pytest.FixtureRequest, count: int) -> list[cases.Case]:
    return cases.draw(request.config.option.seed, count, ways(), root=("first",), group=("all",))


def ways() -> dict[str, cases.Way]:
    return cases.ON_CPU if lacking("compiler") else {**cases.ON_CPU, **cases.COMPILED}


def drawn_of_ranks(request: pytest.FixtureRequest, comm, count: int) -> list[cases.Case]:
    ways = cases.ways_of_ranks(comm.size, emulated=not lacking("compiler"))
    more = {f"layout_{each}": (*SHARED, *cases.LAYOUTS[: -3 if each == "out" else None]) for each in ("a", "b", "c", "out")}
    return cases.draw(request.config.option.seed, count, ways, **more)


def parts(few, many):
    """A few hundred products by default, thousands with --all; divided, so that parts run side by side."""
    return [(part, few) for part in range(few)] + [pytest.param(part, many, marks=pytest.mark.exhaustive) for part in range(many)]


@pytest.mark.parametrize(("part", "of"), parts(12, 100))
def test_a_product_is_what_it_must_be(request, part, of):
    for case in drawn(request, 300 if of == 12 else 6000)[part::of]:
        cases.run(case)


@RANKS
@pytest.mark.parametrize(("part", "of"), parts(1, 20))
def test_a_product_of_several_ranks_is_what_it_must_be(request, comm, part, of):
    for case in drawn_of_ranks(request, comm, 120 // comm.size if of == 1 else 2000)[part::of]:  # four ranks take longer
        cases.run(case, cases.ways_of_ranks(comm.size), comm)
