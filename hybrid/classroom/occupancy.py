# SPDX-License-Identifier: MIT
"""Computes how many blocks of a kernel are resident on a multiprocessor, and what limits their number."""

from __future__ import annotations

from hybrid.classroom.gpu_models import WARP, Multiprocessor
from hybrid.core.problem import record


@record
class Occupancy:
    """What is resident on a multiprocessor."""

    blocks: int
    warps: int
    most_warps: int  # that it could hold
    limits: tuple[str, ...]  # what lets no further block be resident
    alone: dict[str, int]  # how many blocks each limit would let be resident if it were the only one

    @property
    def share(self) -> float:
        """The occupancy, as a fraction."""
        return self.warps / self.most_warps


def occupancy(of: Multiprocessor, threads: int, registers: int | None, shared: int) -> Occupancy:
    """The occupancy with blocks of so many threads, which take so many registers each (None: not known, and no limit), and so
    many bytes of shared memory together."""
    warps = -(-threads // WARP)
    allowed = {"blocks": of.blocks, "threads": of.threads // (warps * WARP) if threads <= of.most_threads else 0}
    if registers:
        allowed["registers"] = _by_registers(of, warps, registers)
    if shared or of.reserved:
        allowed["shared memory"] = of.shared // _rounded(shared + of.reserved, of.shared_unit) if shared <= of.most_shared else 0
    blocks = min(allowed.values())
    limits = tuple(name for name, number in allowed.items() if number == blocks)
    return Occupancy(blocks, blocks * warps, of.threads // WARP, limits, allowed)


def _by_registers(of: Multiprocessor, warps: int, registers: int) -> int:
    if of.registers_by_block:
        return of.registers // _rounded(_rounded(warps, of.warp_unit) * WARP * registers, of.register_unit)
    resident = of.registers // _rounded(registers * WARP, of.register_unit)
    return resident // of.warp_unit * of.warp_unit // warps


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit
