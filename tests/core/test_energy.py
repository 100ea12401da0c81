# SPDX-License-Identifier: MIT
"""What readings come to for a product, and what that costs."""

from __future__ import annotations

import pytest

from hybrid.core.energy import CPU, GPU, MEMORY, Energy
from hybrid.core.price import Price
from hybrid.errors import UsageError


def test_what_was_read_is_divided_by_the_products():
    energy = Energy({GPU: 900.0, CPU: 300.0}, {MEMORY: "no counter"}, 3, 2.0)
    assert energy.of_a_product == {GPU: 300.0, CPU: 100.0}
    assert energy.as_record() == {
        "joules_per_product": {GPU: 300.0, CPU: 100.0, MEMORY: None},
        "why_not": {MEMORY: "no counter"},
        "products": 3,
        "seconds": 2.0,
    }


@pytest.mark.parametrize(
    ("seconds", "known"), [(0.09, []), (0.1, [CPU, MEMORY]), (0.99, [CPU, MEMORY]), (1.0, [GPU, CPU, MEMORY])]
)
def test_a_time_that_is_too_short_for_a_counter_tells_nothing(seconds, known):
    energy = Energy({GPU: 9.0, CPU: 3.0, MEMORY: 1.0}, {}, 1, seconds)
    assert list(energy.of_a_product) == known
    assert [kind for kind in (GPU, CPU, MEMORY) if not energy.too_short(kind)] == known
    needed = {GPU: "1 s", CPU: "0.1 s", MEMORY: "0.1 s"}
    too_short = f"{seconds:.3g} s are too short for its counter, which needs "
    assert energy.as_record()["why_not"] == {kind: too_short + least for kind, least in needed.items() if kind not in known}


def test_a_counter_that_stands_still_tells_nothing():
    energy = Energy({GPU: 0.0, CPU: 3.0}, {}, 1, 2.0)
    assert energy.of_a_product == {CPU: 3.0}
    assert energy.unknown(GPU) == "its counter stood still"
    assert energy.unknown(MEMORY) == "nothing was multiplied"


@pytest.mark.parametrize(
    ("text", "shown", "cost"),
    [
        ("2.50/GPU-h", "2.5/GPU-h", 2.5 * 8 * 0.5),
        ("20/node-h", "20/node-h", 20 * 2 * 0.5),
        (" 0.30/kwh ", "0.3/kWh", 0.3 * 2.0),
        ("0/gpu-H", "0/GPU-h", 0.0),
    ],
)
def test_what_half_an_hour_of_eight_gpus_on_two_nodes_costs(text, shown, cost):
    price = Price.parse(text)
    assert str(price) == shown
    assert price.cost(1800.0, 8, 2, 7.2e6) == pytest.approx(cost)


def test_no_cost_is_known_without_gpus_or_joules():
    assert Price.parse("2/GPU-h").cost(9.0, 0, 1, 5.0) is None
    assert Price.parse("2/kWh").cost(9.0, 1, 1, None) is None
    assert (Price.parse("2/GPU-h").missing, Price.parse("2/kWh").missing) == ("no GPU is used", "its energy is not known")


@pytest.mark.parametrize(
    "text", ["2.50", "2.50/h", "-1/GPU-h", "1e3/GPU-h", "nan/kWh", "2,50/GPU-h", "/kWh", "٣/kWh", "2/GPU-h/x"]
)
def test_what_is_no_price_is_refused_with_examples(text):
    with pytest.raises(UsageError, match=f"'{text}' is no price: such as 2.50/GPU-h, 20/node-h or 0.30/kWh"):
        Price.parse(text)
