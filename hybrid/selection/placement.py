# SPDX-License-Identifier: MIT
"""Where the ranks work: each on a GPU, its own or shared with others, or all on CPUs; on which cores, with how many threads."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid.core.record import record
from hybrid.core.settings import Settings
from hybrid.devices.cuda_gpus import Gpu, choose_gpus
from hybrid.errors import DeviceUnavailable
from hybrid.host.threads import Threads
from hybrid.kernels.catalogue import Kernel
from hybrid.selection.machine import Inventory, Machine, threads_of_ranks


@record
class RankPlacement:
    """Where one rank works."""

    rank: int
    host: str
    cores: tuple[int, ...]
    threads: Threads
    gpu: Gpu | None = None
    shares_gpu_with: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The rank's name in messages."""
        return f"rank {self.rank} on {self.host}" + (f", {self.gpu.name} {self.gpu.uuid}" if self.gpu else "")


def choose_device(settings: Settings, kernel: Kernel | None, ranks: Sequence[Inventory]) -> tuple[list[Gpu], str]:
    """Every rank's GPU, or none of them for the CPU; and why."""
    if settings.device == "cpu":
        return [], "asked for"
    if settings.device == "emulate":
        return [], "asked for: the CPU emulates a GPU"
    if kernel is not None and kernel.device == "cpu":
        return [], f"kernel {kernel.name} runs there"
    without = [rank for rank, inventory in enumerate(ranks) if not inventory.gpus]
    must = settings.device == "cuda" or (kernel is not None and kernel.device == "cuda")
    if len(without) == len(ranks) and not must:
        return [], ranks[0].why_no_gpu
    if without:
        instead = "emulate" if kernel is not None and kernel.source else "cpu"
        who = "every rank" if len(without) == len(ranks) else f"rank {without[0]}"
        reason = ranks[without[0]].why_no_gpu
        raise DeviceUnavailable(f"no usable GPU on {who}: {reason}; mend that, or choose device {instead}")
    chosen = choose_gpus([inventory.gpus for inventory in ranks])
    return chosen, "asked for" if settings.device == "cuda" else "every rank has a usable GPU"


def place_ranks(machine: Machine, settings: Settings, gpus: Sequence[Gpu | None]) -> tuple[RankPlacement, ...]:
    """Where each rank works. `gpus[rank]`: its GPU."""
    processors = [rank.processor for rank in machine.ranks]
    threads = threads_of_ranks(machine.topology, settings, processors)
    users: dict[str, list[int]] = {}
    for rank, gpu in enumerate(gpus):
        if gpu is not None:
            users.setdefault(gpu.uuid, []).append(rank)
    return tuple(
        RankPlacement(
            rank,
            machine.memory[rank].host,
            processors[rank].cores,
            threads[rank],
            gpu,
            tuple(other for other in users[gpu.uuid] if other != rank) if gpu else (),
        )
        for rank, gpu in enumerate(gpus)
    )
