"""Before any data moves: all ranks want the same product, on devices they have, with memory that is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, Topology
from hybrid.devices.cuda_gpus import Gpu, choose_gpus
from hybrid.errors import DeviceUnavailable, DoesNotFit, UsageError
from hybrid.host.threads import Threads
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, Choice, Kernel, fastest, refusal
from hybrid.plan.capacity import FreeMemory, refuse_what_does_not_fit
from hybrid.plan.plan import Plan, make_plan
from hybrid.ranks.team import Team
from hybrid.selection.inventory import Inventory, free_memory_of, kernel_asked_for, threads_of_ranks
from hybrid.transport.build import TransportChoice, choose_transport, give_back, root_can_drive
from hybrid.transport.rank_device import RankDevice

_STEPS_OF_MEMORY = 64  # that plans tell apart, where memory is short


@dataclass(frozen=True)
class RankPlacement:
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
    transport_reason: str
    placements: tuple[RankPlacement, ...]


def agree(
    team: Team,
    problem: Problem,
    settings: Settings,
    facts: Sequence[Inventory],
    *,
    root: int = 0,
    already_there: int = 0,
    at_root: bool = False,
    shared: bool = False,
    resident_rows: tuple[tuple[Span, ...], tuple[Span, ...]] | None = None,
    besides: Sequence[int] = (),
) -> Agreement:
    """Choose device, kernel, plan and road, the same on every rank, and make sure that it all fits.

    `facts[rank]`: every rank's. `already_there`: bytes that the root holds already. `at_root`: the operands are the root's
    own arrays; `shared`: they lie in windows already; `resident_rows`: those of A and of B that each rank already has;
    `besides[rank]`: bytes that the rank takes of the host's memory for other things.

    What was agreed on last is kept with the workplace: the next product is often like it. Not where memory had to be looked at
    anew: that changes, and nothing here would tell.
    """
    asked = (problem, settings, tuple(facts), root, already_there, at_root, shared, resident_rows, tuple(besides))
    remembered = {each.remembers for each in facts}  # ranks that failed alone remember something else, or nothing
    if isinstance(team.kept, RankDevice) and len(remembered) == 1 and 0 not in remembered:
        _, before, agreed = team.kept.agreed
        if asked == before:
            return agreed
    agreed, looked_anew = _agree_anew(team, *asked)
    if isinstance(team.kept, RankDevice):
        team.kept.agreed = None if looked_anew else (team.serial, asked, agreed)
    return agreed


def _agree_anew(
    team: Team,
    problem: Problem,
    settings: Settings,
    facts: Sequence[Inventory],
    root: int,
    already_there: int,
    at_root: bool,
    shared: bool,
    resident_rows: tuple[tuple[Span, ...], tuple[Span, ...]] | None,
    besides: Sequence[int],
) -> tuple[Agreement, bool]:
    """What is agreed on, and whether memory had to be looked at anew for it."""
    kernel = kernel_asked_for(settings)
    gpus, device_reason = _choose_device(settings, kernel, facts)
    device = "cuda" if gpus else "emulate" if settings.device == "emulate" else "cpu"
    choice = choose_kernel(kernel, device, problem, min((gpu.capability for gpu in gpus), default=EMULATED_CAPABILITY))
    of_ranks: list[Gpu | None] = list(gpus) or [None] * team.size

    def settle_in(rooms: Sequence[FreeMemory]) -> tuple[Plan, TransportChoice]:
        """DoesNotFit, on all ranks, where these rooms do not hold the product or are not known to."""
        _refuse_unknown_gpus(rooms, of_ranks)
        plan = _plan_that_fits(team.topology, problem, settings, device, choice.kernel, root, rooms, resident_rows)
        _refuse_more_than_is_known(plan, rooms)
        if gpus and plan.resident and team.kept is not None and _c_is_short_of_room(plan, rooms):
            give_back(team)
        transport = choose_transport(team, plan, settings, of_ranks, choice.kernel)
        plan = plan.with_transport(transport.name)
        _refuse_more_than_is_known(plan, rooms)  # a road may take larger buffers
        if at_root and (team.size == 1 or (transport.name == "peers" and root_can_drive(plan, of_ranks, facts[root].gpus))):
            plan = replace(plan, at_root=True)
        there = already_there if plan.at_root or shared else 0
        refuse_what_does_not_fit(plan, rooms, already_there=there, besides=besides)
        return plan, transport

    rooms, settled = [each.room for each in facts], None
    with suppress(DoesNotFit):
        settled = settle_in(rooms)
    looked_anew = settled is None
    if settled is None:  # as far as is known: the GPUs may not have been asked, and memory may have been given back meanwhile
        with team.phase("agree", timed=False) as looking:
            looking.mine = free_memory_of(team, settings, of_ranks[team.rank], now=True)
        rooms = looking.all
        settled = settle_in(rooms)
    plan, transport = settled
    plan.refuse_endless()
    threads = threads_of_ranks(team.topology, settings, [each.processor for each in facts])
    placements = tuple(
        RankPlacement(
            rank,
            rooms[rank].host,
            facts[rank].processor.cores,
            threads[rank],
            of_ranks[rank],
            tuple(other for other in range(team.size) if other != rank and gpus and rooms[other].gpu_id == rooms[rank].gpu_id),
        )
        for rank in range(team.size)
    )
    return Agreement(plan, choice.kernel, choice.reason, device_reason, transport.reason, placements), looked_anew


def _refuse_unknown_gpus(rooms: Sequence[FreeMemory], gpus: Sequence[Gpu | None]) -> None:
    """DoesNotFit if the rooms are of other GPUs than those that were chosen."""
    if any(room.gpu_id != (gpu.uuid if gpu else "") for room, gpu in zip(rooms, gpus, strict=True)):
        raise DoesNotFit("nobody has worked on these GPUs yet")


def _refuse_more_than_is_known(plan: Plan, rooms: Sequence[FreeMemory]) -> None:
    """DoesNotFit if some rank needs more of a GPU than it holds already, and has not asked how much is free.

    So the usual product, which is like the one before, asks no GPU.
    """
    if plan.device != "cuda":
        return
    for rank, room in enumerate(rooms):
        has_it = plan.bytes_on_gpu(rank) <= room.gpu_reserved and _bytes_of_resident_c(plan, rank) <= room.gpu_pooled
        if not (room.gpu_queried or has_it):
            raise DoesNotFit(f"rank {rank} needs more of its GPU than it has")


def _plan_that_fits(
    topology: Topology,
    problem: Problem,
    settings: Settings,
    device: str,
    kernel: Kernel,
    root: int,
    rooms: Sequence[FreeMemory],
    resident_rows: tuple[tuple[Span, ...], tuple[Span, ...]] | None,
) -> Plan:
    """Cut to the devices' memory only where it is short: what is free changes from call to call, and plans are kept."""
    memory = _device_memory(rooms) if device == "cuda" else settings.gpu_memory
    if device == "cuda" and resident_rows:  # each rank's rows of C lie there, too
        memory = max(1, memory - problem.bytes(max(map(len, resident_rows[0])), problem.m))

    def plan_within(memory: int) -> Plan:
        return make_plan(
            problem,
            topology,
            root=root,
            device=device,
            staged=settings.staged,
            panel_rows=settings.panel_rows,
            panel_columns=settings.panel_columns,
            slab_rows=settings.slab_rows,
            adds=kernel.adds,
            device_memory=memory,
            check=settings.check,
            resident_rows=resident_rows,
        )

    plan = plan_within(0)
    fits = not memory or all(share.layout.bytes <= memory for share in plan.shares)
    return plan if fits else plan_within(memory - memory % max(1, memory // _STEPS_OF_MEMORY))


def _c_is_short_of_room(plan: Plan, rooms: Sequence[FreeMemory]) -> bool:
    """Whether C fits on the GPUs only without what is held there for the next product."""
    return any(_bytes_of_resident_c(plan, rank) > room.gpu_bytes - room.gpu_reserved for rank, room in enumerate(rooms))


def _bytes_of_resident_c(plan: Plan, rank: int) -> int:
    """What the rank's GPU needs beside its buffers."""
    return plan.problem.bytes(len(plan.shares[rank].rows), plan.problem.m) if plan.resident else 0


def _device_memory(rooms: Sequence[FreeMemory]) -> int:
    """Bytes that every rank may take of its GPU, where ranks that share one share its memory."""
    users = Counter(room.gpu_id for room in rooms)
    return max(1, min(room.gpu_bytes // users[room.gpu_id] for room in rooms))


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


def _choose_device(settings: Settings, kernel: Kernel | None, facts: Sequence[Inventory]) -> tuple[list[Gpu], str]:
    """Every rank's GPU, or none of them for the CPU; and why."""
    if settings.device == "cpu":
        return [], "asked for"
    if settings.device == "emulate":
        return [], "asked for: the CPU stands for a GPU"
    if kernel is not None and kernel.device == "cpu":
        return [], f"kernel {kernel.name} runs there"
    ranks = range(len(facts))
    without = [rank for rank in ranks if not facts[rank].gpus]
    must = settings.device == "cuda" or (kernel is not None and kernel.device == "cuda")
    if len(without) == len(facts) and not must:
        return [], facts[0].why_no_gpu
    if without:
        instead = "emulate" if kernel is not None and kernel.source else "cpu"
        who = "every rank" if len(without) == len(facts) else f"rank {without[0]}"
        reason = facts[without[0]].why_no_gpu
        raise DeviceUnavailable(f"no usable GPU on {who}: {reason}; mend that, or use --device {instead}")
    chosen = choose_gpus([each.gpus for each in facts])
    return chosen, "asked for" if settings.device == "cuda" else "every rank has a usable GPU"
