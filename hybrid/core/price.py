# SPDX-License-Identifier: MIT
"""The price of an hour of a GPU or a node, or of a kilowatt-hour, and what a product costs by it."""

from __future__ import annotations

import re

from hybrid.core.record import record
from hybrid.errors import UsageError

_PER_GPU, _PER_NODE, _PER_ENERGY = "GPU-h", "node-h", "kWh"
_UNITS = {unit.lower(): unit for unit in (_PER_GPU, _PER_NODE, _PER_ENERGY)}
_SECONDS_OF_AN_HOUR, _JOULES_OF_A_KILOWATT_HOUR = 3600.0, 3.6e6


@record
class Price:
    """An amount, in any currency, for one of the units that `per` names. Costs are in the same currency."""

    amount: float
    per: str

    @classmethod
    def parse(cls, text: str) -> Price:
        """The price that a user writes: `2.50/GPU-h`, `20/node-h` or `0.30/kWh`. UsageError for any other text."""
        amount, _, unit = text.strip().partition("/")
        if re.fullmatch(r"\d+(\.\d+)?", amount, re.ASCII) is None or unit.lower() not in _UNITS:
            raise UsageError(
                f"{text!r} is no price: such as 2.50/{_PER_GPU}, 20/{_PER_NODE} or 0.30/{_PER_ENERGY}", code="number"
            )
        return cls(float(amount), _UNITS[unit.lower()])

    def __str__(self) -> str:
        return f"{self.amount:.12g}/{self.per}"

    def cost(self, seconds: float, gpus: int, nodes: int, joules: float | None) -> float | None:
        """What so many GPUs or nodes cost for these seconds, or this energy. None where the energy is not known, or there is no
        GPU to pay for."""
        if self.per == _PER_ENERGY:
            return None if joules is None else self.amount * joules / _JOULES_OF_A_KILOWATT_HOUR
        paid_for = gpus if self.per == _PER_GPU else nodes
        return self.amount * paid_for * seconds / _SECONDS_OF_AN_HOUR if paid_for else None

    @property
    def missing(self) -> str:
        """Why `cost` gave None."""
        return "its energy is not known" if self.per == _PER_ENERGY else "no GPU is used"
