# SPDX-License-Identifier: MIT
"""Machines for tests of what is decided: made up, or found by ranks that do not exist."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

from hybrid.devices.cuda_gpus import Gpu
from hybrid.plan.capacity import FreeMemory
from hybrid.selection.machine import Inventory, Machine, Processor, Test

PLENTY = 1 << 60


def machine_of(topology, gpus=None, *, free=PLENTY, **outcomes):
    """One GPU a rank (`gpus[rank]` names it; None: no GPUs), `free` bytes of each; `peers` and `nccl`: why a test failed."""
    names = list(gpus or ())
    memory = [
        FreeMemory(f"node {topology.node_of(rank)}", PLENTY, PLENTY, free if names else 0, names[rank] if names else "")
        for rank in range(topology.size)
    ]
    inventories = tuple(
        Inventory(Processor((0,), None, {}), (Gpu(0, names[rank], "made up"),) if names else (), "" if names else "none", each, 0)
        for rank, each in enumerate(memory)
    )
    return Machine(topology, inventories, tuple(memory), {Test[name.upper()]: why for name, why in outcomes.items()})


class RanksOn:
    """A session of all the ranks of a machine: what they try comes out as the machine says, and is noted in `tried`."""

    def __init__(self, machine):
        self.machine, self.tried = machine, []
        self.rank_device = self.remembered = None
        self.team = SimpleNamespace(topology=machine.topology, rank=0, phase=self._phase)

    def inventories(self):
        """Before anything was measured: no driver has been asked how much of its GPU is free, nor which one it will be."""
        return [
            replace(each, free=replace(each.free, gpu_bytes=PLENTY, gpu_id="", gpu_queried=False)) for each in self.machine.ranks
        ]

    @contextmanager
    def _phase(self, name, *, timed=True):
        self.tried.append("free memory")
        yield SimpleNamespace(mine=None, all=list(self.machine.memory))

    def release_device(self):
        """Nothing is held: no product came before."""

    def why_test_fails(self, test, plan, gpus, kernel, *, again):
        self.tried.append(test.name.lower())
        return self.machine.outcomes[test]
