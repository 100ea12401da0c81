# SPDX-License-Identifier: MIT
"""Whether a stack's products are divided among the ranks, and where each rank computes its own."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid.arrays.stack_share import StackShape
from hybrid.core.settings import Settings
from hybrid.plan.plan import PROCESS_BYTES
from hybrid.selection.kernel import kernel_asked_for
from hybrid.selection.machine import Machine
from hybrid.selection.placement import RankPlacement, choose_device, place_ranks

# Multiply-adds of one product. A larger one fills the GPUs of all ranks, and its kernels hide its copies.
_MOST_ON_GPU = 1 << 33
_KERNELS = ("", "blas", "cublas")  # libraries' kernels multiply stacks; others multiply one product after the other; "": auto


def place_stack(
    machine: Machine, settings: Settings, shape: StackShape, workers: int, bytes_of_ranks: Sequence[int]
) -> tuple[RankPlacement, ...] | None:
    """Where each rank works, if the stack's products are divided among the ranks: the same on every rank.

    None where all ranks are to compute one product after the other together: where products are fewer than `workers`, or too
    large, where the kernel multiplies no stacks, or where the ranks' matrices do not fit their nodes' memory.
    """
    kernel = kernel_asked_for(settings)
    if settings.device == "emulate" or settings.staged or (kernel.name if kernel else "") not in _KERNELS:
        return None
    if shape.count < workers:
        return None
    gpus, _ = choose_device(settings, kernel, machine.ranks)
    problem = shape.problem
    if gpus and problem.n * problem.l * problem.m > _MOST_ON_GPU:
        return None
    if not _fits(machine, bytes_of_ranks):
        return None
    return place_ranks(machine, settings, tuple(gpus) or (None,) * machine.topology.size)


def _fits(machine: Machine, bytes_of_ranks: Sequence[int]) -> bool:
    """Whether the ranks' bytes fit the memory of each host. A host may be several nodes of a pretended topology."""
    needed: dict[str, int] = {}
    for memory, taken in zip(machine.memory, bytes_of_ranks, strict=True):
        needed[memory.host] = needed.get(memory.host, 0) + taken + PROCESS_BYTES
    return all(needed[memory.host] <= memory.host_bytes for memory in machine.memory)
