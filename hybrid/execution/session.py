# SPDX-License-Identifier: MIT
"""What the ranks of a team find before a product, how they agree on it, and what they keep from one product to the next."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np

from hybrid.arrays.interop import SharedArrays
from hybrid.core.problem import Problem, Span
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
from hybrid.transport.rank_device import RankDevice, device_key, device_of_alone, prepare_rank_device

SPARE_GPU_BYTES = 1 << 30  # left free on a GPU: for kernels, libraries, and CUDA contexts, also the root's on others' GPUs
# Bytes of shared memory that a team keeps for next calls: new memory for A, B and C of N = 2000 costs 20,000 page faults, a
# fifth of the product's time on two cores.
MOST_SHARED = min(256 << 20, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 16)
_LARGE_WORKSPACE = 32 << 20  # bytes: a smaller one may have room for others than it was made for


_MOST_REMEMBERED = 64  # decisions: programs have products of several shapes and settings in turn


class Session:
    """A team with its rank's device, the arrays its ranks share, and the last decisions. One for each team.

    What it keeps depends on what all ranks have done. After a call that has failed on any rank, of which another need not know,
    the next agreement has all of them forget it.
    """

    def __init__(self, team: Team) -> None:
        self.team = team
        self.rank_device: RankDevice | None = None  # with memory of its own, which stays while a CPU multiplies others in place
        self._in_place: RankDevice | None = None  # the CPU that does
        self.shared_arrays = SharedArrays()
        # What may be decided again, by request, and from what it was decided; the newest last.
        self._remembered: dict[PlanRequest, tuple[object, Decision]] = {}
        self._changed, self._of_memory = 0, 0  # the team's last phase when these changed; `_memory_version` then
        self._workspace = np.empty(0, np.uint8)
        self._gpu_bytes_lately = ttl_cached(self._gpu_bytes)
        team.when_freed.append(self._end)

    @property
    def remembered_serial(self) -> int:
        """The same on all ranks that remember the same decisions; 0 where there are none that may be taken again."""
        return self._changed if self._remembered and self._of_memory == self._memory_version else 0

    def last_of(self, problem: Problem) -> Decision | None:
        """The last decision on such a product, if it may be taken again."""
        if not self.remembered_serial:
            return None
        decided = (decision for _, decision in reversed(self._remembered.values()))
        return next((decision for decision in decided if decision.plan.problem == problem), None)

    def remembered(self, request: PlanRequest, asked: object, serials: Set[int]) -> Decision | None:
        """What was decided on the same. `serials`: `remembered_serial` of all ranks; one that failed alone has another."""
        if serials != {self._changed}:
            self._remembered.clear()
        before, decision = self._remembered.get(request, (None, None))
        return decision if before == asked else None

    def remember(self, request: PlanRequest, asked: object, decision: Decision | None) -> None:
        """Decide the same if the same is asked; with None, nothing that is known. Every rank calls it."""
        if self._of_memory != self._memory_version:
            self._remembered.clear()
        self._remembered.pop(request, None)
        if decision is not None:
            self._remembered[request] = asked, decision
            if len(self._remembered) > _MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
        self._changed, self._of_memory = self.team.serial, self._memory_version

    @property
    def _memory_version(self) -> int:
        return self.rank_device.memory_version if self.rank_device is not None else 0

    def workspace(self, size: int) -> np.ndarray:
        """So many bytes or more in memory that the only node's ranks share, kept for the next call. Every rank calls it."""
        if not self.has_workspace(size):
            self.drop_workspace()
            room = 1 << max(16, (size - 1).bit_length()) if size <= _LARGE_WORKSPACE else size
            self._workspace = make_shared_matrices(self.team, {"A": Span(0, 1)}, {"A": room}, {"A": "uint8"})["A"].array[0]
        return self._workspace

    def has_workspace(self, size: int) -> bool:
        """Whether so many bytes are kept: then `workspace` does not need the other ranks."""
        return len(self._workspace) >= size

    def drop_workspace(self) -> None:
        self._workspace = np.empty(0, np.uint8)

    def device(self, plan: Plan, gpus: Sequence[Gpu | None], kernel: Kernel) -> RankDevice:
        """This rank's device, ready for the kernel: the last product's, or a new one for another plan. Every rank calls it."""
        if plan.device == "cpu" and not plan.staged:
            self._in_place = prepare_rank_device(self.team, self._in_place, plan, gpus, kernel)
            return self._in_place
        if self.rank_device is not None and self.rank_device.key != device_key(plan, gpus):
            self.release_device()
        with wall.within("GPU start" if plan.device == "cuda" else "prepare"):
            self.rank_device = prepare_rank_device(self.team, self.rank_device, plan, gpus, kernel)
        self.use_gpu()
        return self.rank_device

    def device_of_alone(self, gpu: Gpu) -> RankDevice:
        """The device of this process, which is alone, on a GPU, for which no kernel need be ready."""
        if self.rank_device is not None and self.rank_device.gpu != gpu:
            self.release_device()
        self.rank_device = device_of_alone(self.team, self.rank_device, gpu)
        self.use_gpu()
        return self.rank_device

    def use_gpu(self) -> None:
        """Have this thread's CUDA calls work on the rank's GPU, to the end of the call, or of the command."""
        if self.rank_device is not None and self.rank_device.gpu is not None:
            gpu_context(self.rank_device.gpu.index).stay()

    def has_room(self, host_bytes: int, gpu_bytes: int) -> bool:
        """Whether a product of this process alone may take so much memory, as it was a moment ago."""
        enough = not host_bytes or available_host_bytes() >= host_bytes
        return enough and (not gpu_bytes or self._gpu_bytes_lately() >= gpu_bytes)

    def _gpu_bytes(self) -> int:
        made = self.rank_device
        return _room_on(made.gpu, made.bytes_reserved) if made is not None and made.gpu is not None else 0

    def release_device(self) -> None:
        """Give back the device's memory. Every rank calls it."""
        with self.team.phase("prepare", timed=False):  # nobody frees memory that another rank has still open
            if self.rank_device is not None:
                self.use_gpu()
                self.rank_device.close()
        with self.team.phase("prepare", timed=False):
            self._close()

    def _close(self) -> None:
        with callers_context():  # the communicator may be freed outside of calls
            self.use_gpu()
            made, self.rank_device = self.rank_device, None
            self._remembered.clear()
            if made is not None:
                made.leave()

    def forget(self) -> None:
        """Keep nothing of the calls before. Every rank calls it."""
        self.release_device()
        self._in_place = None
        self.drop_workspace()
        self.team.has_failed = False

    def _end(self) -> None:
        """The communicator has been freed, and nobody can name shared arrays any more."""
        self._close()
        self.drop_workspace()
        self.shared_arrays = SharedArrays()
        _sessions.pop(self.team, None)


_sessions: dict[Team, Session] = {}


def session_of(team: Team) -> Session:
    """The team's session, made at the first call and kept until its communicator is freed."""
    if team not in _sessions:
        _sessions[team] = Session(team)
    return _sessions[team]


def take_inventory(session: Session, settings: Settings) -> Inventory:
    """This rank's inventory, in a phase. Raises what makes the rank unable to take part."""
    gpus: tuple[Gpu, ...] = ()
    why_no_gpu = ""
    kernel_asked_for(settings)
    if settings.device == "emulate":
        from hybrid.emulation.build import compiler

        compiler()
    elif may_use_gpus(settings):
        if cuda_driver() is not None and "cupy" not in sys.modules:  # whose import takes as long
            wake_driver(settings, with_context=settings.device == "cuda")
        try:
            with wall.within("GPU start"):
                gpus = tuple(usable_gpus())
        except DeviceUnavailable as missing:
            why_no_gpu = str(missing)
    used_before = session.rank_device.gpu if session.rank_device else None
    free = free_memory_of(session, settings, used_before if used_before in gpus else None)
    model = MachineModel.read(settings.machine)
    return Inventory(this_processor(), gpus, why_no_gpu, free, session.remembered_serial, model, session.team.has_failed)


def free_memory_of(session: Session, settings: Settings, gpu: Gpu | None, *, now: bool = False) -> FreeMemory:
    """This rank's free memory: with `now` measured, else as it was a moment ago, without the GPU's driver, whose answer takes as
    long as a small product."""
    device = session.rank_device
    # Buffers reserved for earlier products are used again by this one, or given back before it begins.
    reserved = device.bytes_reserved if device is not None and device.gpu == gpu else 0
    on_gpu = settings.gpu_memory or sys.maxsize
    if gpu and now:
        with wall.within("GPU start"):  # the first time it waits for the GPU's context and CUDA's runtime
            on_gpu = min(on_gpu, _room_on(gpu, reserved))
    return FreeMemory(
        host=session.team.host,
        host_bytes=settings.host_memory or (available_host_bytes(now=True) if now else _about(available_host_bytes())),
        gpu_bytes=on_gpu if gpu or not now else 0,  # before the first product the GPU is not known yet
        gpu_id=gpu.uuid if gpu else "",
        gpu_reserved=reserved,
        gpu_pooled=pooled_bytes(gpu) if gpu else 0,
        gpu_queried=now,
    )


def _about(size: int) -> int:
    """The bytes, rounded down so far that a decision holds while others take and free memory. Where they do not suffice, they are
    measured."""
    return size >> 28 << 28


def _room_on(gpu: Gpu, reserved: int) -> int:
    """The bytes of a GPU that the next product may take, of which so many are reserved already."""
    free = free_bytes(gpu) + reserved
    return free - min(SPARE_GPU_BYTES, free // 8)


def agree(session: Session, request: PlanRequest, settings: Settings, inventories: Sequence[Inventory]) -> Decision:
    """The decision for this product, the same on every rank. Every rank calls it, with the inventories of all, and raises alike:
    DoesNotFit with the missing amount, UsageError, DeviceUnavailable.

    A decision serves again if the same is asked for, unless free memory was measured for it, which may have changed.
    """
    if any(inventory.failed for inventory in inventories):
        session.forget()
    asked = settings, tuple(inventories)
    known = session.remembered(request, asked, {inventory.remembers for inventory in inventories})
    if known is not None:
        return known
    is_measured = False

    def find_out(known: Machine, test: str | None, gpus: Sequence[Gpu | None], plan: Plan, kernel: Kernel) -> Machine:
        nonlocal is_measured
        if test is not None:
            device = session.rank_device
            if device is None or device.key != device_key(plan, gpus):
                device = session.device(plan, gpus, kernel)
            session.use_gpu()
            # Who asks for a transport may have mended what an earlier test failed for.
            why = device.refusal(test, again=settings.transport != "auto")
            return replace(known, outcomes={**known.outcomes, test: why})
        with session.team.phase("agree", timed=False) as looking:
            looking.mine = free_memory_of(session, settings, gpus[session.team.rank], now=True)
        is_measured = True
        return replace(known, ranks=tuple(map(lambda rank, free: replace(rank, free=free), known.ranks, looking.all)))

    decision = decide(Machine(session.team.topology, tuple(inventories), {}, find_out), request, settings)
    if decision.shortage:
        raise decision.shortage
    has_gpu = session.rank_device is not None and session.rank_device.gpu is not None
    if has_gpu and (decision.needs_reserved or settings.device == "cpu"):
        session.release_device()
    session.remember(request, asked, None if is_measured else decision)
    return decision


def threads_until_decided(team: Team, settings: Settings) -> int:
    """The number of threads with which a rank looks at its operands, before it is decided how many it has."""
    return settings.threads or max(1, len(usable_cores()) // len(team.node_ranks))
