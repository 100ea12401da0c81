# SPDX-License-Identifier: MIT
"""A team's state between products (device, workspace, decisions), and before a product the ranks' inventory and agreement."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hybrid.arrays.interop import SharedArrays
from hybrid.core.problem import Span
from hybrid.core.settings import Settings
from hybrid.core.timeline import wall
from hybrid.devices.cuda_gpus import callers_context, cuda_driver, free_bytes, gpu_context, pooled_bytes, usable_gpus, wake_driver
from hybrid.errors import DeviceUnavailable
from hybrid.host.memory import available_host_bytes, ttl_cached
from hybrid.host.threads import usable_cores
from hybrid.kernels.catalogue import Kernel
from hybrid.planning.decision import (
    Decision,
    Gpu,
    Inventory,
    Machine,
    decide,
    kernel_asked_for,
    may_use_gpus,
    this_processor,
)
from hybrid.planning.machine_model import MachineModel
from hybrid.planning.plan import FreeMemory, Plan
from hybrid.planning.tiling import PlanRequest
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team
from hybrid.transport.rank_device import RankDevice, device_key, device_of_alone, ready_device

SPARE_GPU_BYTES = 1 << 30  # left free on a GPU for kernels, libraries and CUDA contexts, including the root's on other GPUs
# Largest workspace kept between calls, in bytes. New memory costs page faults: for N = 2000 a fifth of the time on two cores.
MOST_SHARED = min(256 << 20, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 16)
_LARGE_WORKSPACE = 32 << 20  # bytes: smaller workspaces are rounded up to a power of two, to serve other shapes too
_MOST_REMEMBERED = 64  # decisions, for programs that alternate between shapes and settings


class Session:
    """A team's state between calls: this rank's device, shared arrays, workspace and the last decisions. One for each team.

    The state must match on all ranks. After a call that failed on one rank alone, the next agreement has all discard theirs.
    """

    def __init__(self, team: Team) -> None:
        self.team = team
        self.rank_device: RankDevice | None = None  # the last device with its own memory; kept during products in place
        self._in_place: RankDevice | None = None  # the CPU, multiplying in place
        self.shared_arrays = SharedArrays()
        # Cached decisions by request, with the settings and inventories behind them; the newest last.
        self.decisions: dict[PlanRequest, tuple[object, Decision]] = {}
        self.changed = 0  # the team's serial at their last change, equal on all ranks that cache the same
        # The environment in which the ranks agreed that the root computes such products alone, whatever memory the arrays lie in.
        self.repeatable: dict[object, tuple[object, object]] = {}
        self._workspace = np.empty(0, np.uint8)
        self._gpu_bytes_lately = ttl_cached(self._gpu_bytes)
        team.when_freed.append(self._end)

    def workspace(self, size: int) -> np.ndarray:
        """At least `size` bytes of memory shared by the ranks of a single node, kept between calls. Collective."""
        if len(self._workspace) < size:
            self.drop_workspace()
            room = 1 << max(16, (size - 1).bit_length()) if size <= _LARGE_WORKSPACE else size
            self._workspace = make_shared_matrices(self.team, {"A": Span(0, 1)}, {"A": room}, {"A": "uint8"})["A"].array[0]
        return self._workspace

    def drop_workspace(self) -> None:
        self._workspace = np.empty(0, np.uint8)

    def device(self, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> RankDevice:
        """This rank's device, ready for the kernel: the last product's if the plan allows, else a new one. Collective."""
        if plan.device == "cpu" and not plan.staged:
            self._in_place = ready_device(self.team, self._in_place, plan, gpus, kernel)
            return self._in_place
        if self.rank_device is not None and self.rank_device.key != device_key(plan, gpus):
            self.release_device()
        with wall.within("GPU start" if plan.device == "cuda" else "prepare"):
            self.rank_device = ready_device(self.team, self.rank_device, plan, gpus, kernel)
        self.use_gpu()
        return self.rank_device

    def device_of_alone(self, gpu: Gpu) -> RankDevice:
        """The device on this GPU for a process alone, without a kernel."""
        if self.rank_device is not None and self.rank_device.gpu != gpu:
            self.release_device()
        self.rank_device = self.rank_device or device_of_alone(self.team, gpu)
        self.use_gpu()
        return self.rank_device

    def use_gpu(self) -> None:
        """Make the rank's GPU current for this thread until the end of the call or command."""
        if self.rank_device is not None and self.rank_device.gpu is not None:
            gpu_context(self.rank_device.gpu.index).stay()

    def has_room(self, host_bytes: int, gpu_bytes: int) -> bool:
        """Whether this much memory was free a moment ago, for a product in a process alone."""
        enough = not host_bytes or available_host_bytes() >= host_bytes
        return enough and (not gpu_bytes or self._gpu_bytes_lately() >= gpu_bytes)

    def _gpu_bytes(self) -> int:
        made = self.rank_device
        return _room_on(made.gpu, made.bytes_reserved) if made is not None and made.gpu is not None else 0

    def release_device(self) -> None:
        """Release the device and its memory. Collective."""
        with self.team.phase("prepare", timed=False):  # all ranks close their handles before any rank frees memory
            if self.rank_device is not None:
                self.use_gpu()
                self.rank_device.close()
        with self.team.phase("prepare", timed=False):
            self._close()

    def _close(self) -> None:
        with callers_context():  # a communicator may be freed outside of calls
            self.use_gpu()
            made, self.rank_device = self.rank_device, None
            self.decisions.clear()
            if made is not None:
                made.leave()

    def forget(self) -> None:
        """Discard the state of earlier calls. Collective."""
        self.release_device()
        self._in_place = None
        self.drop_workspace()
        self.team.has_failed = False

    def _end(self) -> None:
        """Release everything after the communicator was freed."""
        self._close()
        self.drop_workspace()
        self.shared_arrays = SharedArrays()
        _sessions.pop(self.team, None)


_sessions: dict[Team, Session] = {}


def session_of(team: Team) -> Session:
    """The team's session, created at the first call and kept until its communicator is freed."""
    if team not in _sessions:
        _sessions[team] = Session(team)
    return _sessions[team]


def take_inventory(session: Session, settings: Settings) -> Inventory:
    """This rank's inventory. Call it within a phase. Raises if the rank cannot take part."""
    gpus: tuple[Gpu, ...] = ()
    why_no_gpu = ""
    kernel_asked_for(settings)
    if settings.device == "emulate":
        from hybrid.emulation.build import compiler

        compiler()
    elif may_use_gpus(settings):
        if cuda_driver() is not None and "cupy" not in sys.modules:  # overlap the driver's start with CuPy's import
            wake_driver(settings, with_context=settings.device == "cuda")
        try:
            with wall.within("GPU start"):
                gpus = tuple(usable_gpus())
        except DeviceUnavailable as missing:
            why_no_gpu = str(missing)
    used_before = session.rank_device.gpu if session.rank_device else None
    free = free_memory_of(session, settings, used_before if used_before in gpus else None)
    model = MachineModel.read(settings.machine)
    cached = session.changed if session.decisions else 0
    return Inventory(this_processor(), gpus, why_no_gpu, free, cached, model, session.team.has_failed)


def free_memory_of(session: Session, settings: Settings, gpu: Gpu | None, *, now: bool = False) -> FreeMemory:
    """This rank's free memory. `now`: measured; else as of a moment ago, without the GPU's driver, which takes too long."""
    device = session.rank_device
    # Buffers of earlier products count as free: they are reused, or released before the product begins.
    reserved = device.bytes_reserved if device is not None and device.gpu == gpu else 0
    on_gpu = settings.gpu_memory or sys.maxsize
    if gpu and now:
        with wall.within("GPU start"):  # the first query waits for the CUDA context
            on_gpu = min(on_gpu, _room_on(gpu, reserved))
    return FreeMemory(
        host=session.team.host,
        # Unless measured, in steps of 256 MiB: cached decisions stay valid while others use memory. If too low, it is measured.
        host_bytes=settings.host_memory or (available_host_bytes(now=True) if now else available_host_bytes() >> 28 << 28),
        gpu_bytes=on_gpu if gpu or not now else 0,  # no GPU is chosen before the first product
        gpu_id=gpu.uuid if gpu else "",
        gpu_reserved=reserved,
        gpu_pooled=pooled_bytes(gpu) if gpu else 0,
        gpu_queried=now,
    )


def _room_on(gpu: Gpu, reserved: int) -> int:
    """GPU memory for the next product, including what is already `reserved`."""
    free = free_bytes(gpu) + reserved
    return free - min(SPARE_GPU_BYTES, free // 8)


def agree(session: Session, request: PlanRequest, settings: Settings, inventories: Sequence[Inventory]) -> Decision:
    """The decision for this product, the same on every rank. Collective; `inventories`: of all ranks. All ranks raise together:
    DoesNotFit with the missing amount, UsageError or DeviceUnavailable.

    Decisions are cached, except those that depend on measured free memory.
    """
    if any(inventory.failed for inventory in inventories):
        session.forget()
    if {inventory.remembers for inventory in inventories} != {session.changed}:  # some rank has failed alone
        session.decisions.clear()
    asked = settings, tuple(inventories)
    before, cached = session.decisions.get(request, (None, None))
    if cached is not None and before == asked:
        return cached
    is_measured = False

    def find_out(known: Machine, test: str | None, gpus: Sequence[Gpu | None], plan: Plan, kernel: Kernel) -> Machine:
        nonlocal is_measured
        if test is not None:
            # Test again if the caller names a transport: they may have fixed the cause of an earlier failure.
            why = session.device(plan, gpus, kernel).refusal(test, again=settings.transport != "auto")
            return replace(known, outcomes={**known.outcomes, test: why})
        with session.team.phase("agree", timed=False) as asking:
            asking.mine = free_memory_of(session, settings, gpus[session.team.rank], now=True)
        is_measured = True
        return replace(known, ranks=tuple(replace(rank, free=free) for rank, free in zip(known.ranks, asking.all, strict=True)))

    decision = decide(Machine(session.team.topology, tuple(inventories), {}, find_out), request, settings)
    if decision.shortage:
        raise decision.shortage
    has_gpu = session.rank_device is not None and session.rank_device.gpu is not None
    if has_gpu and (decision.needs_reserved or settings.device == "cpu"):
        session.release_device()
    session.decisions.pop(request, None)
    if not is_measured:
        session.decisions[request] = asked, decision
        if len(session.decisions) > _MOST_REMEMBERED:
            del session.decisions[next(iter(session.decisions))]
    session.changed = session.team.serial
    return decision


def threads_until_decided(team: Team, settings: Settings) -> int:
    """The number of threads for a rank to inspect its operands before the decision."""
    return settings.threads or max(1, len(usable_cores()) // len(team.node_ranks))
