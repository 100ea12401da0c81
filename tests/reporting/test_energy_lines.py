# SPDX-License-Identifier: MIT
"""Energy and cost in words."""

from __future__ import annotations

import pytest

from hybrid.core.energy import CPU, GPU, MEMORY, Energy
from hybrid.core.price import Price
from hybrid.reporting.energy_lines import Paid, cost_line, energy_line, energy_record, joules_in_units

WHOLE = Energy({GPU: 12_000.0, CPU: 450.0, MEMORY: 50.0}, {}, 10, 20.0)


def paid(energy, gpus=8):
    return Paid(2 * 10**15, 1.8, gpus, 1, energy)


def test_all_that_is_known_is_told_with_the_speed_for_it():
    assert energy_line(paid(WHOLE), checked=True, may_repeat=True) == (
        "energy: GPU 1.2 kJ, CPU 45 J, memory 5 J a product, 1.60 TF/s per W (10 products in 20.00 s with checks)"
    )
    assert energy_record(None, paid(WHOLE))["energy"]["operations_per_joule"] == 2e15 / 1250
    assert set(energy_record(None, paid(WHOLE))) == {"energy"}


def test_without_the_energy_of_what_multiplies_there_is_no_speed_for_it():
    only_cpu = Energy({CPU: 450.0}, {GPU: "NVML is not there", MEMORY: "none"}, 10, 20.0)
    assert energy_line(paid(only_cpu), checked=False, may_repeat=True) == "energy: CPU 45 J a product (10 products in 20.00 s)"
    assert paid(only_cpu).operations_per_joule is None
    assert paid(only_cpu, gpus=0).operations_per_joule == 2e15 / 45


def test_of_what_is_too_short_it_is_said_how_many_products_would_do():
    energy = Energy({GPU: 90.0, CPU: 45.0, MEMORY: 5.0}, {}, 1, 0.5)
    gpu = "GPU not told, 0.5 s are too short for its counter (1 s at least"
    assert energy_line(paid(energy), checked=True, may_repeat=True) == (
        f"energy: CPU 45 J, memory 5 J a product (1 product in 0.50 s with checks); {gpu}: --repeat 3)"
    )
    assert energy_line(paid(energy), checked=True, may_repeat=False).endswith(f"; {gpu})")
    energy = Energy({CPU: 45.0, MEMORY: 5.0}, {GPU: "no GPU is used"}, 2, 0.05)
    assert energy_line(paid(energy, gpus=0), checked=True, may_repeat=True) == (
        "energy: CPU not told, 0.05 s are too short for its counter (0.1 s at least: --repeat 5)"
    )


def test_where_nothing_can_be_read_nothing_is_told():
    nothing = Energy({}, {GPU: "no NVML", CPU: "no RAPL", MEMORY: "no RAPL"}, 1, 9.0)
    assert energy_line(paid(nothing), checked=True, may_repeat=True) == ""
    assert energy_record(None, paid(nothing))["energy"]["joules_per_product"] == {GPU: None, CPU: None, MEMORY: None}


@pytest.mark.parametrize(
    ("price", "line"),
    [
        ("2.50/GPU-h", "cost: 0.01 a product at 2.5/GPU-h"),
        ("20/node-h", "cost: 0.01 a product at 20/node-h"),
        ("0.3/kWh", "cost: 0.000104 a product at 0.3/kWh"),
        ("4000000/node-h", "cost: 2000 a product at 4000000/node-h"),
    ],
)
def test_the_cost_is_that_of_one_product(price, line):
    asked = Price.parse(price)
    assert cost_line(asked, 1.8, 8, 1, 1250.0) == line
    cost = energy_record(asked, paid(WHOLE))["cost_per_product"]
    assert cost == asked.cost(1.8, 8, 1, 1250.0)


@pytest.mark.parametrize(
    ("joules", "text"),
    [(0.01234, "0.0123 J"), (12.34, "12.3 J"), (999.7, "1000 J"), (1234.0, "1.23 kJ"), (56_789.0, "56.8 kJ"), (2.5e6, "2.5 MJ"),
     (5e9, "5000 MJ")],
)  # fmt: skip
def test_joules_have_three_digits(joules, text):
    assert joules_in_units(joules) == text
