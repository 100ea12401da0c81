"""Before any data moves: all ranks want the same product, on devices they have, with memory that is there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybrid.devices.cuda import Gpu, choose_gpu, free_bytes, usable_gpus
from hybrid.emulation.build import compiler
from hybrid.errors import DeviceUnavailable, UsageError
from hybrid.kernels.catalogue import CATALOGUE, EMULATED_CAPABILITY, Choice, Kernel, fastest, named, refusal
from hybrid.memory import Room, available_host_bytes, refuse_what_does_not_fit, shared_bytes
from hybrid.partition import Span
from hybrid.plan import Plan, make_plan
from hybrid.problem import Problem
from hybrid.settings import Settings, one_of
from hybrid.team import Team
from hybrid.threads import THREAD_VARIABLES, Threads, announce_threads, choose_threads, core_quota, usable_cores
from hybrid.window import window_folder

SPARE_GPU_BYTES = 1 << 30  # for kernels, libraries, and what CUDA sets up when work begins, the root's contexts among it


@dataclass(frozen=True)
class Station:
    """Where one rank works."""

    rank: int
    host: str
    cores: tuple[int, ...]
    threads: Threads
    gpu: Gpu | None = None
    shares_gpu_with: tuple[int, ...] = ()


@dataclass(frozen=True)
class Agreement:
    """What all ranks hold to."""

    plan: Plan
    kernel: Kernel
    kernel_reason: str
    device_reason: str
    road_reason: str
    stations: tuple[Station, ...]


def same_on_all_ranks(asked: Sequence[Mapping[str, Any]]) -> None:
    """Raise UsageError, naming the first rank that asks for something else than rank 0. `asked[rank]`, for all ranks."""
    first = asked[0]
    for rank, other in enumerate(asked):
        for key in first:
            if other.get(key) != first[key]:
                raise UsageError(
                    f"rank {rank} asks for {key} {other.get(key)}, rank 0 for {first[key]}: all ranks must ask for the same"
                )


def settle_threads(team: Team, settings: Settings) -> list[Threads]:
    """Every rank's number of threads. Called before NumPy is loaded where that can be, so that BLAS starts no more."""
    with team.phase("agree", timed=False) as counting:
        counting.mine = (usable_cores(), core_quota(), {name: os.environ.get(name, "") for name in THREAD_VARIABLES})
    chosen = []
    for rank in range(team.size):
        members = team.topology.nodes[team.topology.node_of(rank)]
        cores = [counting.all[member][0] for member in members]
        _, quota, environment = counting.all[rank]
        chosen.append(choose_threads(settings.threads, members.index(rank), cores, environment, quota))
    announce_threads(chosen[team.rank].count)
    return chosen


def agree(
    team: Team,
    problem: Problem,
    settings: Settings,
    *,
    threads: list[Threads],
    root: int = 0,
    already_there: int = 0,
    at_root: bool = False,
    shared: bool = False,
    resident_rows: tuple[Sequence[Span], Sequence[Span]] | None = None,
) -> Agreement:
    """Choose device, kernel, plan and road, the same on every rank, and make sure that it all fits.

    `already_there`: bytes that the root holds already. `at_root`: the operands are the root's own arrays; `shared`:
    they lie in windows already;
    `resident_rows`: those of A and of B that each rank already has.
    """
    from hybrid.roads import choose_road, root_can_drive  # with NumPy, which must not be loaded before the threads are settled

    kernel = choose_kernel_by_name(settings)
    gpus, device_reason = _choose_device(team, settings, kernel)
    device = "cuda" if gpus else "emulate" if settings.device == "emulate" else "cpu"
    choice = choose_kernel(kernel, device, problem, min((gpu.capability for gpu in gpus), default=EMULATED_CAPABILITY))
    mine = gpus[team.rank] if gpus else None
    with team.phase("agree", timed=False) as looking:
        looking.mine = (_room(team, settings, mine), usable_cores(), already_there)
    rooms = [room for room, _, _ in looking.all]
    memory = _device_memory(rooms) if gpus else settings.gpu_memory
    if gpus and resident_rows:  # each rank's rows of C lie there, too
        memory = max(1, memory - problem.bytes(max(map(len, resident_rows[0])), problem.m))
    plan = make_plan(
        problem,
        team.topology,
        root=root,
        device=device,
        staged=settings.staged,
        chunk_rows=settings.chunk_rows,
        panel_columns=settings.panel_columns,
        device_memory=memory,
        check=settings.check,
        resident_rows=resident_rows,
    )
    road = choose_road(team, plan, settings, mine, choice.kernel)
    plan = replace(plan, road=road.name)
    all_gpus: list[Gpu | None] = list(gpus) or [None] * team.size
    if at_root and (team.size == 1 or (road.name == "peers" and root_can_drive(team, plan, all_gpus))):
        plan = replace(plan, at_root=True)
    refuse_what_does_not_fit(plan, rooms, already_there=looking.all[root][2] if plan.at_root or shared else 0)
    stations = tuple(
        Station(
            rank,
            room.host,
            cores,
            threads[rank],
            all_gpus[rank],
            tuple(other for other in range(team.size) if other != rank and room.gpu_id and rooms[other].gpu_id == room.gpu_id),
        )
        for rank, (room, cores, _) in enumerate(looking.all)
    )
    return Agreement(plan, choice.kernel, choice.reason, device_reason, road.reason, stations)


def _device_memory(rooms: Sequence[Room]) -> int:
    """Bytes that every rank may take of its GPU, where ranks that share one share its memory."""
    users = Counter(room.gpu_id for room in rooms)
    return max(1, min(room.gpu_bytes // users[room.gpu_id] for room in rooms))


def choose_kernel_by_name(settings: Settings) -> Kernel | None:
    """The kernel asked for; None for auto. UsageError for unknown names and for kernels of another device."""
    if settings.kernel == "auto":
        return None
    one_of("kernel", settings.kernel, [kernel.name for kernel in CATALOGUE])
    kernel = named(settings.kernel)
    assert kernel is not None
    if settings.device != "auto" and not kernel.runs_on(settings.device):
        raise UsageError(f"kernel {kernel.name} runs on {kernel.device}, but the device asked for is {settings.device}")
    return kernel


def choose_kernel(asked_for: Kernel | None, device: str, problem: Problem, capability: int) -> Choice:
    """The kernel asked for, or the fastest. UsageError if it cannot do what is asked of it."""
    if asked_for is None:
        try:
            return fastest(device, problem.dtype, problem.m, capability)
        except LookupError as none:
            raise UsageError(str(none)) from None
    refused = refusal(asked_for, problem.dtype, problem.m, capability)
    if refused:
        raise UsageError(refused)
    return Choice(asked_for, "asked for")


def _choose_device(team: Team, settings: Settings, kernel: Kernel | None) -> tuple[list[Gpu], str]:
    """Every rank's GPU, or none of them for the CPU; and why."""
    if settings.device == "cpu":
        return [], "asked for"
    if settings.device == "emulate":
        with team.phase("agree", timed=False):
            compiler()
        return [], "asked for: the CPU stands for a GPU"
    if kernel is not None and kernel.device == "cpu":
        return [], f"kernel {kernel.name} runs there"
    with team.phase("agree", timed=False) as looking:
        try:
            looking.mine = usable_gpus()
        except DeviceUnavailable as missing:
            looking.mine = str(missing)
    without = [rank for rank, seen in enumerate(looking.all) if isinstance(seen, str)]
    must = settings.device == "cuda" or (kernel is not None and kernel.device == "cuda")
    if len(without) == team.size and not must:
        return [], str(looking.all[0])
    if without:
        instead = "emulate" if kernel is not None and kernel.source else "cpu"
        who = "every rank" if len(without) == team.size else f"rank {without[0]}"
        raise DeviceUnavailable(f"no usable GPU on {who}: {looking.all[without[0]]}; mend that, or use --device {instead}")
    chosen = []
    for rank in range(team.size):
        members = team.topology.nodes[team.topology.node_of(rank)]
        chosen.append(choose_gpu(members.index(rank), [looking.all[member] for member in members]))
    return chosen, "asked for" if settings.device == "cuda" else "every rank has a usable GPU"


def _room(team: Team, settings: Settings, gpu: Gpu | None) -> Room:
    # What is held for earlier products serves this one, or is given back before.
    held = team.kept.held if team.kept is not None else 0
    free_on_gpu = free_bytes(gpu) + held if gpu else 0
    free_on_gpu -= min(SPARE_GPU_BYTES, free_on_gpu // 8)
    return Room(
        host=team.host,
        host_bytes=settings.host_memory or available_host_bytes(),
        shared_bytes=shared_bytes(window_folder()),
        gpu_bytes=min(settings.gpu_memory or free_on_gpu, free_on_gpu),
        gpu_id=gpu.uuid if gpu else "",
    )
