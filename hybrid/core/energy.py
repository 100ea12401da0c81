# SPDX-License-Identifier: MIT
"""What products took of energy, as the machines' counters tell it, and what that comes to for one product."""

from __future__ import annotations

from collections.abc import Mapping

from hybrid.core.record import record

GPU, CPU, MEMORY = "gpu", "cpu", "memory"
KINDS = (GPU, CPU, MEMORY)
# Seconds below which a difference of two readings tells nothing. NVML renews its counter every 20 to 100 ms and RAPL about every
# millisecond: at both ends so much may be missing, or belong to what came before.
LEAST_SECONDS = {GPU: 1.0, CPU: 0.1, MEMORY: 0.1}


@record
class Energy:
    """`joules`: of each kind that was read, the sum of all GPUs, or hosts, from before the first product until after the last.

    `why_not`: of the other kinds, why they were not read. `seconds`: of all products together, between the readings.
    """

    joules: Mapping[str, float]
    why_not: Mapping[str, str]
    products: int
    seconds: float

    def too_short(self, kind: str) -> bool:
        """It was read, but the products took so little time that the difference would mean nothing."""
        return kind in self.joules and self.seconds < LEAST_SECONDS[kind]

    def unknown(self, kind: str) -> str:
        """Why it is not known what a product took; empty where it is."""
        if kind not in self.joules:
            return self.why_not.get(kind, "nothing was multiplied")
        if self.too_short(kind):
            return f"{self.seconds:.3g} s are too short for its counter, which needs {LEAST_SECONDS[kind]:g} s"
        return "" if self.joules[kind] > 0 else "its counter stood still"

    @property
    def of_a_product(self) -> dict[str, float]:
        """Joules of a product, of the kinds of which they are known."""
        return {kind: self.joules[kind] / self.products for kind in KINDS if not self.unknown(kind)}

    def as_record(self) -> dict[str, object]:
        """For a JSON line."""
        return {
            "joules_per_product": {kind: self.of_a_product.get(kind) for kind in KINDS},
            "why_not": {kind: why for kind in KINDS if (why := self.unknown(kind))},
            "products": self.products,
            "seconds": self.seconds,
        }
