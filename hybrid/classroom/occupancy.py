# SPDX-License-Identifier: MIT
"""How many blocks of a kernel are resident on a multiprocessor, and what is short first."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.classroom.gpu_models import WARP, Multiprocessor


@dataclass(frozen=True)
class Occupancy:
    """Of a multiprocessor. `limits`: what lets no further block be resident; of two that do at once, both. `alone`: how many
    blocks each limit would let in if it were the only one."""

    blocks: int
    warps: int
    most_warps: int
    limits: tuple[str, ...]
    alone: dict[str, int]

    @property
    def share(self) -> float:
        return self.warps / self.most_warps


def occupancy(of: Multiprocessor, threads: int, registers: int | None, shared: int) -> Occupancy:
    """Of blocks of so many threads, registers a thread (None: not known, and taken for no limit) and bytes of shared memory."""
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
