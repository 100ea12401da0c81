# SPDX-License-Identifier: MIT
"""The energy that products took, by the machines' counters, and what a product costs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hybrid.core.problem import record
from hybrid.errors import UsageError

GPU, CPU, MEMORY = "gpu", "cpu", "memory"
KINDS = (GPU, CPU, MEMORY)
# Seconds below which the difference of two readings tells nothing. NVML renews its counter every 20 to 100 ms, RAPL about every
# millisecond: the energy of so much time may be missing at either end, or belong to what came before.
LEAST_SECONDS = {GPU: 1.0, CPU: 0.1, MEMORY: 0.1}


@record
class Energy:
    """What the counters said of one or several products.

    `joules`: for each kind that was read, the sum over all GPUs, or hosts, from before the first product until after the last.
    `why_not`: for the other kinds, why they were not read. `seconds`: the time of all products together, from reading to
    reading.
    """

    joules: Mapping[str, float]
    why_not: Mapping[str, str]
    products: int
    seconds: float

    def too_short(self, kind: str) -> bool:
        """Whether this kind was read, but the products took so little time that the difference of two readings means nothing."""
        return kind in self.joules and self.seconds < LEAST_SECONDS[kind]

    def unknown(self, kind: str) -> str:
        """Why it is not known what a product took of this kind; empty where it is known."""
        if kind not in self.joules:
            return self.why_not.get(kind, "nothing was multiplied")
        if self.too_short(kind):
            return f"{self.seconds:.3g} s are too short for its counter, which needs {LEAST_SECONDS[kind]:g} s"
        return "" if self.joules[kind] > 0 else "its counter stood still"

    @property
    def of_a_product(self) -> dict[str, float]:
        """The joules that one product took, of each kind for which they are known."""
        return {kind: self.joules[kind] / self.products for kind in KINDS if not self.unknown(kind)}

    def as_record(self) -> dict[str, object]:
        """These numbers as an object of a JSON line."""
        return {
            "joules_per_product": {kind: self.of_a_product.get(kind) for kind in KINDS},
            "why_not": {kind: why for kind in KINDS if (why := self.unknown(kind))},
            "products": self.products,
            "seconds": self.seconds,
        }


_UNITS = {"gpu-h": "GPU-h", "node-h": "node-h", "kwh": "kWh"}
_SECONDS_OF_AN_HOUR, _JOULES_OF_A_KILOWATT_HOUR = 3600.0, 3.6e6


@record
class Price:
    """An amount, in any currency, for an hour of a GPU or a node, or for a kilowatt-hour. Costs are in the same currency."""

    amount: float
    per: str

    @classmethod
    def parse(cls, text: str) -> Price:
        """The price that a user writes: `2.50/GPU-h`, `20/node-h` or `0.30/kWh`. UsageError for any other text."""
        amount, _, unit = text.strip().partition("/")
        if re.fullmatch(r"\d+(\.\d+)?", amount, re.ASCII) is None or unit.lower() not in _UNITS:
            raise UsageError(f"{text!r} is no price: such as 2.50/GPU-h, 20/node-h or 0.30/kWh", code="number")
        return cls(float(amount), _UNITS[unit.lower()])

    def __str__(self) -> str:
        return f"{self.amount:.12g}/{self.per}"

    def cost(self, seconds: float, gpus: int, nodes: int, joules: float | None) -> float | None:
        """What so many GPUs or nodes cost for these seconds, or this energy. None where the energy is not known, or there is no
        GPU to pay for."""
        if self.per == "kWh":
            return None if joules is None else self.amount * joules / _JOULES_OF_A_KILOWATT_HOUR
        paid_for = gpus if self.per == "GPU-h" else nodes
        return self.amount * paid_for * seconds / _SECONDS_OF_AN_HOUR if paid_for else None

    @property
    def missing(self) -> str:
        """Why `cost` gave None."""
        return "its energy is not known" if self.per == "kWh" else "no GPU is used"
