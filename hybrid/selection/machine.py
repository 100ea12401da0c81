# SPDX-License-Identifier: MIT
"""The machine a decision is made for: found by the ranks of a job, or assumed for `--explain`.

Each rank takes an inventory: its cores, the GPUs it sees, its free memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any

from hybrid.core.problem import record
from hybrid.core.settings import Settings, one_of
from hybrid.core.spans import Topology
from hybrid.core.timeline import wall
from hybrid.devices.cuda_gpus import Gpu, free_bytes, pooled_bytes, usable_gpus, wake_driver
from hybrid.errors import DeviceUnavailable, UsageError
from hybrid.host.memory import available_host_bytes, free_bytes_in, ttl_cached
from hybrid.host.threads import THREAD_VARIABLES, Threads, announce_threads, choose_threads, core_quota, usable_cores
from hybrid.kernels.catalogue import CATALOGUE, Kernel, named
from hybrid.planning.machine_model import H200, MachineModel
from hybrid.planning.plan import FreeMemory
from hybrid.ranks.launcher import launched
from hybrid.ranks.shared_memory import shared_memory_folder
from hybrid.ranks.team import Team

if TYPE_CHECKING:
    from hybrid.selection.session import Session


SPARE_GPU_BYTES = 1 << 30  # left free on a GPU: for kernels, libraries, and CUDA contexts, also the root's on others' GPUs


@record
class Processor:
    """What a rank's number of CPU threads depends on."""

    cores: tuple[int, ...]
    quota: float | None  # cores' worth of time that a container may use; None: not limited
    environment: Mapping[str, str]  # the variables that limit threads


@record
class Inventory:
    """What one rank finds before a product."""

    processor: Processor
    gpus: tuple[Gpu, ...]
    why_no_gpu: str  # empty where GPUs were found, or not looked for
    free: FreeMemory
    remembers: int = field(compare=False)  # the serial of the decision that this rank would take again; 0: none
    model: MachineModel = H200
    workspace: int = field(default=0, compare=False)  # the serial of the memory that the ranks have kept for calls; 0: none


class Test(Enum):
    """What can only be found out by trying. All ranks try together."""

    __test__ = False  # pytest takes it for a test class otherwise

    PEERS = "every rank fetches data from the GPUs of its node's other ranks"
    NCCL = "NCCL brings every rank's data to every other"


@record
class Machine:
    """What is known of all ranks. `ranks[rank]` is a rank's inventory.

    `free[rank]`: its free memory, measured for this product; empty if it was not measured: then the inventories have what is
    known without asking the GPUs. `outcomes`: for each test that was made, why it failed; "" where it passed.
    """

    topology: Topology
    ranks: tuple[Inventory, ...]
    free: tuple[FreeMemory, ...] = ()
    outcomes: Mapping[Test, str] = field(default_factory=dict)

    @property
    def memory(self) -> Sequence[FreeMemory]:
        """Each rank's free memory, as far as it is known."""
        return self.free or [rank.free for rank in self.ranks]

    @property
    def model(self) -> MachineModel:
        """The ranks' model of the machine. UsageError if they have different ones."""
        model = self.ranks[0].model
        for rank, other in enumerate(self.ranks):
            for name, value in vars(other.model).items() if other.model != model else ():
                if value != getattr(model, name):
                    raise UsageError(
                        f"HYBRID_MACHINE gives {name} {value} on rank {rank}, {getattr(model, name)} on rank 0: "
                        "all ranks must have the same numbers",
                        code="ranks-differ",
                    )
        return model


# -------- inventory


def same_on_all_ranks(asked: Sequence[Mapping[str, Any]]) -> None:
    """Raise UsageError, naming the first rank that asks for something else than rank 0. `asked[rank]`: what each asks for, by
    name."""
    first = asked[0]
    for rank, other in enumerate(asked[1:], 1):
        for key in first:
            if other.get(key) != first[key]:
                name = "" if key == "kind" else f"{key} "  # a kind's value says itself what it is
                raise UsageError(
                    f"rank {rank} asks for {name}{other.get(key)}, rank 0 for {first[key]}: all ranks must ask for the same",
                    code="ranks-differ",
                )


def kernel_asked_for(settings: Settings) -> Kernel | None:
    """The kernel asked for; None for auto. UsageError for unknown names and for kernels of another device."""
    if settings.kernel == "auto":
        return None
    one_of("kernel", settings.kernel, [kernel.name for kernel in CATALOGUE])
    kernel = named(settings.kernel)
    assert kernel is not None
    if settings.device != "auto" and not kernel.runs_on(settings.device):
        raise UsageError(
            f"kernel {kernel.name} runs on {kernel.device}, but the device asked for is {settings.device}", code="kernel-device"
        )
    return kernel


def _may_use_gpus(settings: Settings) -> bool:
    kernel = named(settings.kernel)
    return settings.device in ("auto", "cuda") and (kernel is None or kernel.device == "cuda")


def wake_gpus(settings: Settings) -> None:
    """Start the driver of the GPUs in the background, if the settings allow GPUs. Called after `settle_threads`."""
    if _may_use_gpus(settings):
        launch = launched()
        wake_driver(launch.local_rank if launch else 0)


def take_inventory(session: Session, settings: Settings) -> Inventory:
    """This rank's inventory. Raises what makes it unable to take part; to be called within a phase."""
    gpus: tuple[Gpu, ...] = ()
    why_no_gpu = ""
    kernel_asked_for(settings)
    if settings.device == "emulate":
        from hybrid.emulation.build import compiler

        compiler()
    elif _may_use_gpus(settings):
        try:
            with wall.within("GPU start"):
                gpus = tuple(usable_gpus())
        except DeviceUnavailable as missing:
            why_no_gpu = str(missing)
    used_before = session.rank_device.gpu if session.rank_device else None
    free = free_memory_of(session, settings, used_before if used_before in gpus else None)
    model = MachineModel.of(settings.machine)
    return Inventory(_processor(), gpus, why_no_gpu, free, session.remembered_serial, model, session.workspace_serial)


def free_memory_of(session: Session, settings: Settings, gpu: Gpu | None, *, now: bool = False) -> FreeMemory:
    """This rank's free memory: as it was a moment ago, without asking the GPU's driver, which takes as long as a small product;
    with `now`, measured."""
    device = session.rank_device
    # Buffers reserved for earlier products are used again by this one, or given back before it begins.
    reserved = device.reserved + device.reserved_for_check if device is not None and device.gpu == gpu else 0
    on_gpu = settings.gpu_memory or sys.maxsize
    if gpu and now:
        with wall.within("GPU start"):  # the first time it waits for the GPU's context and CUDA's runtime
            free = free_bytes(gpu) + reserved
        on_gpu = min(on_gpu, free - min(SPARE_GPU_BYTES, free // 8))
    return FreeMemory(
        host=session.team.host,
        host_bytes=settings.host_memory or available_host_bytes(now=now),
        shared_bytes=_shared_bytes() if now else _shared_bytes_lately(),
        gpu_bytes=on_gpu if gpu or not now else 0,  # before the first product the GPU is not known yet
        gpu_id=gpu.uuid if gpu else "",
        gpu_reserved=reserved,
        gpu_pooled=pooled_bytes(gpu) if gpu else 0,
        gpu_queried=now,
    )


def _shared_bytes() -> int:
    return free_bytes_in(shared_memory_folder())


_shared_bytes_lately = ttl_cached(_shared_bytes)
core_quota_lately = ttl_cached(core_quota)


def _processor() -> Processor:
    return Processor(usable_cores(), core_quota_lately(), {name: os.environ.get(name, "") for name in THREAD_VARIABLES})


def threads_of_ranks(topology: Topology, settings: Settings, processors: Sequence[Processor]) -> list[Threads]:
    """How many CPU threads each rank has, and why."""
    chosen = []
    for rank, own in enumerate(processors):
        members = topology.nodes[topology.node_of(rank)]
        cores = [processors[member].cores for member in members]
        chosen.append(choose_threads(settings.threads, members.index(rank), cores, own.environment, own.quota))
    return chosen


def settle_threads(team: Team, settings: Settings) -> list[Threads]:
    """Every rank's number of threads. Called before NumPy is loaded where that can be, so that BLAS starts no more."""
    with team.phase("agree", timed=False) as counting:
        counting.mine = _processor()
    chosen = threads_of_ranks(team.topology, settings, counting.all)
    announce_threads(chosen[team.rank].count)
    return chosen
