# SPDX-License-Identifier: MIT
"""Several ranks multiply the arrays of a root as one process does: the root gets the product, the others None, whatever the
nodes, grids, devices and transports are."""

from __future__ import annotations

import pytest
from support import cases
from support.needs import lacking

PARTS = 6
COUNT = 60
SHARED = ("hybrid.empty",) * 4

pytestmark = pytest.mark.mpi(min_size=2)


def drawn(request: pytest.FixtureRequest, comm, count: int = COUNT) -> list[cases.Case]:
    ways = cases.ways_of_ranks(comm.size, emulated=not lacking("compiler"))
    more = {f"layout_{each}": (*SHARED, *cases.LAYOUTS[: -3 if each == "out" else None]) for each in ("a", "b", "c", "out")}
    return cases.draw(request.config.option.seed, count, ways, **more)


@pytest.mark.parametrize("parts", [PARTS])
def test_a_product_is_what_it_must_be(request, comm, parts):
    for case in drawn(request, comm):
        cases.run(case, cases.ways_of_ranks(comm.size), comm)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(20))
def test_thousands_of_products_are(request, comm, part):
    for case in drawn(request, comm, 2000)[part::20]:
        cases.run(case, cases.ways_of_ranks(comm.size), comm)


def test_every_value_of_every_dimension_is_met(request, comm):
    found = cases.met(drawn(request, comm))
    assert found["way"] == set(cases.ways_of_ranks(comm.size, emulated=not lacking("compiler")))
    assert found["form"] == set(cases.FORMS)
    assert found["values"] == set(cases.VALUES)
    assert found["out"] == set(cases.OUTS)
    assert found["flags"] == set(cases.FLAGS)
    assert found["root"] == {"first", "last"}
    assert found["group"] == {"all", "copy", "backwards"}
    assert {each for types in found["types"] for each in types} == set(cases.TYPES)
    for place in range(2):
        assert found[f"layouts {place}"] == set(cases.LAYOUTS)
        assert found[f"sizes {place}"] >= {0, 1, 40}
