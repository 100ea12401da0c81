# SPDX-License-Identifier: MIT
"""Energy and cost of a product: what the counters said, the lines that a user reads, and the entries of the run's record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hybrid.core.problem import record
from hybrid.core.settings import Price
from hybrid.core.text import counted, rate_in_units
from hybrid.reporting.run_report import operations, plans_of

if TYPE_CHECKING:
    from hybrid.runs.measured import Outcome

GPU, CPU, MEMORY = "gpu", "cpu", "memory"
KINDS = (GPU, CPU, MEMORY)
# Seconds below which the difference of two readings tells nothing. NVML renews its counter every 20 to 100 ms, RAPL about every
# millisecond: the energy of so much time may be missing at either end, or belong to what came before.
LEAST_SECONDS = {GPU: 1.0, CPU: 0.1, MEMORY: 0.1}
_NAMES = {GPU: "GPU", CPU: "CPU", MEMORY: "memory"}


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


@record
class Paid:
    """What one product took, from which its cost follows."""

    operations: int
    seconds: float
    gpus: int
    nodes: int
    energy: Energy  # of all products of the run

    @property
    def joules(self) -> float | None:
        """The energy of a product, as far as it is known. None if that of what multiplies, the GPUs or else the CPUs, is not."""
        known = self.energy.of_a_product
        return sum(known.values()) if (GPU if self.gpus else CPU) in known else None

    @property
    def operations_per_joule(self) -> float | None:
        return self.operations / self.joules if self.joules else None


def paid_for(outcome: Outcome, energy: Energy) -> Paid:
    """What one product of this run took."""
    placements = outcome.decision.placements
    gpus = {placement.gpu.uuid for placement in placements if placement.gpu}
    hosts = {placement.host for placement in placements}
    return Paid(operations(plans_of(outcome)), outcome.total.median, len(gpus), len(hosts), energy)


def energy_line(paid: Paid, *, checked: bool, may_repeat: bool) -> str:
    """The line about energy; "" where no counter could be read.

    `checked`: each product was checked within the time that was measured. `may_repeat`: where that time was too short, the line
    may propose more products in a run.
    """
    energy, known = paid.energy, paid.energy.of_a_product
    parts = []
    if known:
        took = ", ".join(f"{_NAMES[kind]} {joules_in_units(joules)}" for kind, joules in known.items())
        speed = f", {rate_in_units(paid.operations_per_joule, 'F')} per W" if paid.operations_per_joule else ""
        measured = f"{counted(energy.products, 'product')} in {energy.seconds:.2f} s{' with checks' if checked else ''}"
        parts.append(f"{took} a product{speed} ({measured})")
    parts += _too_short(energy, may_repeat=may_repeat)
    return f"energy: {'; '.join(parts)}" if parts else ""


def _too_short(energy: Energy, *, may_repeat: bool) -> Iterator[str]:
    for kind, least in LEAST_SECONDS.items():
        if energy.too_short(kind) and not (kind == MEMORY and energy.too_short(CPU)):  # one remark for CPU and memory
            enough = math.ceil(1.1 * least * energy.products / max(energy.seconds, 1e-3))
            advice = f": --repeat {enough}" if may_repeat else ""
            yield f"{_NAMES[kind]} not told, {energy.seconds:.2g} s are too short for its counter ({least:g} s at least{advice})"


def cost_line(price: Price, seconds: float, gpus: int, nodes: int, joules: float | None) -> str:
    """The line about the cost of a product that takes so many seconds and, where that is known, joules."""
    cost = price.cost(seconds, gpus, nodes, joules)
    return f"cost: not known at {price}, {price.missing}" if cost is None else f"cost: {_figure(cost)} a product at {price}"


def energy_record(price: Price | None, paid: Paid) -> dict[str, Any]:
    """The entries of the run's record: `energy` and, where a price is given, `cost_per_product`."""
    cost = {"cost_per_product": price.cost(paid.seconds, paid.gpus, paid.nodes, paid.joules)} if price else {}
    return {"energy": {**paid.energy.as_record(), "operations_per_joule": paid.operations_per_joule}, **cost}


def joules_in_units(joules: float) -> str:
    """This energy with three digits, in J, kJ or MJ."""
    for unit, size in (("MJ", 1e6), ("kJ", 1e3)):
        if joules >= size:
            return f"{_figure(joules / size)} {unit}"
    return f"{_figure(joules)} J"


def _figure(number: float) -> str:
    """The number with three digits, or with all before the point."""
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"
