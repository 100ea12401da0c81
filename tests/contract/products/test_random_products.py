# SPDX-License-Identifier: MIT
"""In one process `hybrid.multiply` gives the product of any two arrays, in any form, exactly or as accurately as its type allows:
whatever their types and layouts are, whatever is asked for beside them, and however it is carried out."""

from __future__ import annotations

import pytest
from support import cases
from support.needs import lacking

PARTS = 12
COUNT = 300


def ways() -> dict[str, cases.Way]:
    return cases.ON_CPU if lacking("compiler") else {**cases.ON_CPU, **cases.EMULATED}


def drawn(request: pytest.FixtureRequest, count: int = COUNT) -> list[cases.Case]:
    return cases.draw(request.config.option.seed, count, ways(), root=("first",), group=("all",))


@pytest.mark.parametrize("part", range(PARTS))
def test_a_product_is_what_it_must_be(request, part):
    for case in drawn(request)[part::PARTS]:
        cases.run(case)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(100))
def test_thousands_of_products_are(request, part):
    for case in drawn(request, 6000)[part::100]:
        cases.run(case)


def test_every_value_of_every_dimension_is_met(request):
    found = cases.met(drawn(request))
    assert found["way"] == set(ways())
    assert set(cases.dimensions(ways())["types"]) == found["types"]
    assert found["form"] == set(cases.FORMS)
    assert found["values"] == set(cases.VALUES)
    assert found["out"] == set(cases.OUTS)
    assert found["flags"] == set(cases.FLAGS)
    assert found["dtype"] >= {None, *cases.TYPES} - {"bool"}
    for name in ("alpha", "beta"):
        assert found[name] >= set(cases.FACTORS)
    for place in range(4):
        assert found[f"layouts {place}"] >= set(cases.LAYOUTS[: len(cases.LAYOUTS) - 3 * (place == 3)])
    for place in range(2):
        assert found[f"holders {place}"] >= set(cases.HOLDERS[:-1])
    for place in range(3):
        assert found[f"sizes {place}"] >= set(cases.SIZES)
