# SPDX-License-Identifier: MIT
"""What every rank finds before a product: its cores, the GPUs it sees, its free memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hybrid.core.settings import Settings
from hybrid.core.ttl_cache import ttl_cached
from hybrid.core.wall import wall
from hybrid.devices.cuda_contexts import free_bytes, pooled_bytes, wake_driver
from hybrid.devices.cuda_gpus import Gpu, usable_gpus
from hybrid.errors import DeviceUnavailable, UsageError
from hybrid.host.memory import available_host_bytes, free_bytes_in
from hybrid.host.threads import THREAD_VARIABLES, Threads, announce_threads, core_quota, usable_cores
from hybrid.kernels.catalogue import named
from hybrid.plan.capacity import FreeMemory
from hybrid.plan.machine_model import MachineModel
from hybrid.ranks.launcher import launched
from hybrid.ranks.shared_memory import shared_memory_folder
from hybrid.ranks.team import Team
from hybrid.selection.kernel import kernel_asked_for
from hybrid.selection.machine import Inventory, Processor, threads_of_ranks

if TYPE_CHECKING:
    from hybrid.selection.session import Session  # it loads NumPy, and `settle_threads` has to come before that

# Left free on a GPU: for kernels, libraries, and CUDA contexts, among them the root's on other ranks' GPUs.
SPARE_GPU_BYTES = 1 << 30


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


def may_use_gpus(settings: Settings) -> bool:
    """Whether the settings allow GPUs."""
    kernel = named(settings.kernel)
    return settings.device in ("auto", "cuda") and (kernel is None or kernel.device == "cuda")


def wake_gpus(settings: Settings) -> None:
    """Start the driver of the GPUs in the background, if the settings allow GPUs. Called after `settle_threads`."""
    if may_use_gpus(settings):
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
    elif may_use_gpus(settings):
        try:
            with wall.within("GPU start"):
                gpus = tuple(usable_gpus())
        except DeviceUnavailable as missing:
            why_no_gpu = str(missing)
    used_before = session.rank_device.gpu if session.rank_device else None
    free = free_memory_of(session, settings, used_before if used_before in gpus else None)
    model = MachineModel.of(settings.machine)
    return Inventory(_processor(), gpus, why_no_gpu, free, session.remembered_serial, model)


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
_core_quota_lately = ttl_cached(core_quota)


def settle_threads(team: Team, settings: Settings) -> list[Threads]:
    """Every rank's number of threads. Called before NumPy is loaded where that can be, so that BLAS starts no more."""
    with team.phase("agree", timed=False) as counting:
        counting.mine = _processor()
    chosen = threads_of_ranks(team.topology, settings, counting.all)
    announce_threads(chosen[team.rank].count)
    return chosen


def _processor() -> Processor:
    return Processor(usable_cores(), _core_quota_lately(), {name: os.environ.get(name, "") for name in THREAD_VARIABLES})
