# SPDX-License-Identifier: MIT
"""What a product costs, by the price of an hour of a GPU or a node, or of a kilowatt-hour."""

from __future__ import annotations

import re

from hybrid.core.record import record
from hybrid.errors import UsageError

_PER_GPU, _PER_NODE, _PER_ENERGY = "GPU-h", "node-h", "kWh"
_UNITS = {unit.lower(): unit for unit in (_PER_GPU, _PER_NODE, _PER_ENERGY)}
_SECONDS_OF_AN_HOUR, _JOULES_OF_A_KILOWATT_HOUR = 3600.0, 3.6e6


@record
class Price:
    """In any currency: costs are in the same."""

    amount: float
    per: str

    @classmethod
    def parse(cls, text: str) -> Price:
        """`2.50/GPU-h`, `20/node-h`, `0.30/kWh`. UsageError for anything else."""
        amount, _, unit = text.strip().partition("/")
        if re.fullmatch(r"\d+(\.\d+)?", amount, re.ASCII) is None or unit.lower() not in _UNITS:
            raise UsageError(f"{text!r} is no price: such as 2.50/{_PER_GPU}, 20/{_PER_NODE} or 0.30/{_PER_ENERGY}")
        return cls(float(amount), _UNITS[unit.lower()])

    def __str__(self) -> str:
        return f"{self.amount:.12g}/{self.per}"

    def cost(self, seconds: float, gpus: int, nodes: int, joules: float | None) -> float | None:
        """Of GPUs or nodes for this time, or of this energy; None where that is not known, or there is no GPU to pay for."""
        if self.per == _PER_ENERGY:
            return None if joules is None else self.amount * joules / _JOULES_OF_A_KILOWATT_HOUR
        paid_for = gpus if self.per == _PER_GPU else nodes
        return self.amount * paid_for * seconds / _SECONDS_OF_AN_HOUR if paid_for else None

    @property
    def missing(self) -> str:
        """Why there is no cost."""
        return "its energy is not known" if self.per == _PER_ENERGY else "no GPU is used"
