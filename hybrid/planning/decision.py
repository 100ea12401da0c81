# SPDX-License-Identifier: MIT
"""Decides device, kernel, precision, plan and transport of a product, each with its reason, from machine and settings.

`decide` is a pure function of its arguments: of the machine that the ranks found, or that `--explain` assumes. If it needs a fact
not measured yet, it has the ranks measure it and starts again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from hybrid.core.problem import Problem, Span, Topology, alike, record
from hybrid.core.settings import Settings, one_of
from hybrid.errors import DeviceUnavailable, DoesNotFit, UsageError
from hybrid.host.memory import ttl_cached
from hybrid.host.threads import THREAD_VARIABLES, Threads, choose_threads, core_quota, usable_cores
from hybrid.kernels.catalogue import (
    CATALOGUE,
    EMULATED_CAPABILITY,
    LEAST_FOR_BYTES,
    MOST_TERMS,
    Kernel,
    dotted,
    fastest,
    named,
    refusal,
)
from hybrid.planning import grid as grids
from hybrid.planning.arithmetic import MOST_MODULI, gain_of_remainders, native_speed
from hybrid.planning.machine_model import H200, MachineModel
from hybrid.planning.plan import PROCESS_BYTES, FreeMemory, Plan, make_plan, shortage, why_no_nccl, why_no_peers
from hybrid.planning.tiling import OperandLocation, PlanRequest, soonest


@record
class Gpu:
    """A GPU visible to this process. `index`: its number in this process; other processes may count differently."""

    index: int
    uuid: str
    name: str
    capability: int = 90  # compute capability, times ten


def choose_gpus(gpus_of_ranks: Sequence[Sequence[Gpu]]) -> list[Gpu | None]:
    """A GPU for each rank, from the GPUs visible to each; None for a rank without.

    Each rank takes its least-used GPU; ranks that see the fewest GPUs choose first. So all GPUs are used before one is shared,
    whether a rank sees all of its node's GPUs or only its own. UUIDs identify GPUs, since each process counts its own from 0.
    """
    users: Counter[str] = Counter()
    chosen: dict[int, Gpu] = {}
    for rank in sorted(range(len(gpus_of_ranks)), key=lambda rank: len(gpus_of_ranks[rank])):
        if gpus_of_ranks[rank]:
            chosen[rank] = min(gpus_of_ranks[rank], key=lambda gpu: users[gpu.uuid])
            users[chosen[rank].uuid] += 1
    return [chosen.get(rank) for rank in range(len(gpus_of_ranks))]


@record
class Processor:
    """The inputs for a rank's number of CPU threads."""

    cores: tuple[int, ...]
    quota: float | None  # a container's CPU limit in cores; None: no limit
    environment: Mapping[str, str]  # variables that limit threads


@record
class Inventory:
    """One rank's resources before a product."""

    processor: Processor
    gpus: tuple[Gpu, ...]
    why_no_gpu: str  # empty if GPUs were found, or not searched
    free: FreeMemory
    remembers: int = field(compare=False)  # serial of the rank's cached decisions; 0: none
    model: MachineModel = H200
    failed: bool = field(default=False, compare=False)  # a call has failed: the ranks must discard their cached state


TESTED = {  # transports that all ranks test before use, and the condition
    "peers": "every rank fetches data from the GPUs of its node's other ranks",
    "nccl": "NCCL brings every rank's data to every other",
}


@record
class Machine:
    """All ranks' inventories, and the outcome of each tested transport: why it failed, "" if it passed.

    `find_out`: measures one more fact for these GPUs, plan and kernel, the test of a transport or for None free memory, and
    returns the completed machine. None if all facts are known.
    """

    topology: Topology
    ranks: tuple[Inventory, ...]
    outcomes: Mapping[str, str] = field(default_factory=dict)
    find_out: Callable[[Machine, str | None, Sequence[Gpu | None], Plan, Kernel], Machine] | None = None

    @property
    def memory(self) -> Sequence[FreeMemory]:
        return [rank.free for rank in self.ranks]

    @property
    def is_measured(self) -> bool:
        """Whether free memory was measured for this product, including a query of the GPUs."""
        return all(rank.free.gpu_queried for rank in self.ranks)

    @property
    def model(self) -> MachineModel:
        """Rank 0's model of the machine."""
        return self.ranks[0].model


core_quota_lately = ttl_cached(core_quota)


def same_on_all_ranks(asked: Sequence[Mapping[str, Any]]) -> None:
    """UsageError naming the first rank whose request differs from rank 0's. `asked[rank]`: the request, by name of the option."""
    first = asked[0]
    for rank, other in enumerate(asked[1:], 1):
        for key in first:
            if other.get(key) != first[key]:
                name = "" if key == "kind" else f"{key} "  # the value of "kind" needs no name
                raise UsageError(
                    f"rank {rank} asks for {name}{other.get(key)}, rank 0 for {first[key]}: all ranks must ask for the same",
                    code="ranks-differ",
                )


def kernel_asked_for(settings: Settings) -> Kernel | None:
    """The requested kernel; None for auto. UsageError for unknown names and for kernels of another device."""
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


def may_use_gpus(settings: Settings) -> bool:
    """Whether the requested device and kernel allow GPUs."""
    kernel = named(settings.kernel)
    return settings.device in ("auto", "cuda") and (kernel is None or kernel.device == "cuda")


def this_processor() -> Processor:
    """This rank's processor; its core quota as of a moment ago."""
    return Processor(usable_cores(), core_quota_lately(), {name: os.environ.get(name, "") for name in THREAD_VARIABLES})


def threads_of_ranks(topology: Topology, settings: Settings, processors: Sequence[Processor]) -> list[Threads]:
    """Each rank's number of CPU threads, with the reason."""
    chosen = []
    for rank, own in enumerate(processors):
        members = topology.nodes[topology.node_of(rank)]
        cores = [processors[member].cores for member in members]
        chosen.append(choose_threads(settings.threads, members.index(rank), cores, own.environment, own.quota))
    return chosen


@record
class RankPlacement:
    """One rank's host, cores, threads and GPU."""

    rank: int
    host: str
    cores: tuple[int, ...]
    threads: Threads
    gpu: Gpu | None = None
    shares_gpu_with: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}" + (f", {self.gpu.name} {self.gpu.uuid}" if self.gpu else "")


@record
class Decision:
    """How to compute a product; the same on all ranks."""

    plan: Plan
    kernel: Kernel
    kernel_reason: str
    device_reason: str
    transport_reason: str
    precision_reason: str  # why tiles may come from remainders, or are native
    placements: tuple[RankPlacement, ...]
    shortage: DoesNotFit | None = None  # the error to raise if the plan does not fit
    needs_reserved: bool = False  # C fits only after releasing the buffers of earlier products
    speed: float | None = None  # expected kernel speed relative to the machine model's native kernels; None: unknown

    @property
    def reads_transposed(self) -> bool:
        """Whether transposed operands are read in place: BLAS transposes, and so do H2D copies."""
        return self.plan.staged or self.kernel.name == "blas"

    def threads_of_copies(self, rank: int) -> int:
        """The number of threads for a rank's copies. If the root copies for all ranks, it uses the cores of all."""
        users = self.placements if self.plan.at_root else self.placements[rank : rank + 1]
        return sum(placement.threads.count for placement in users)

    def device_of(self, rank: int) -> str:
        """Rank, host, device and kernel, for messages."""
        placement = self.placements[rank]
        device = "" if placement.gpu else f", device {self.plan.device}"
        return f"{placement.name}{device}, kernel {self.kernel.name}"

    def multiplied_by(self, row: int, columns: Span) -> tuple[str, int | None]:
        """Who computed these elements of C, for messages; and the rank, or None if several did."""
        ranks = self.plan.multiplied_by(row, columns)
        return " or ".join(map(self.device_of, ranks)), ranks[0] if len(ranks) == 1 else None


def decide(machine: Machine, request: PlanRequest, settings: Settings) -> Decision:
    """Choose device, kernel, plan and transport. UsageError or DeviceUnavailable if the settings cannot be met."""
    asked_for = kernel_asked_for(settings)
    chosen, device_reason = _choose_device(settings, asked_for, machine.ranks)
    if chosen and request.operands is OperandLocation.ROOT_ARRAYS and _cpu_is_faster(machine, request.problem, settings):
        chosen, device_reason = [], "so small a product takes longer on a GPU, with the copies to it"
    gpus = tuple(chosen) or (None,) * machine.topology.size
    device = "cuda" if chosen else "emulate" if settings.device == "emulate" else "cpu"
    capability = min((gpu.capability for gpu in chosen), default=EMULATED_CAPABILITY)
    try:
        if request.problem.short_operands and (len(machine.topology.nodes) > 1 or settings.precision == "fast"):
            request = request.converted
        kernel = _choose_kernel(asked_for, device, request.problem, capability)
    except UsageError:  # no kernel multiplies 16-bit operands directly
        if not request.problem.short_operands:
            raise
        request = request.converted
        kernel = _choose_kernel(asked_for, device, request.problem, capability)
    if request.problem.symmetric and not _uses_triangle(machine.topology, device, kernel, settings, request.row_blocks):
        request = replace(request, problem=replace(request.problem, symmetric=""))
    asked = replace(
        request,
        topology=machine.topology,
        operands=OperandLocation.NODE_SHARED if request.operands is OperandLocation.ROOT_ARRAYS else request.operands,
        bytes_there=0,  # plans do not depend on these four
        besides=(),
        besides_on_gpu=(),
        on_gpus=False,
        device=device,
        staged=settings.staged,
        accumulates=kernel.adds,
        panel_rows=settings.panel_rows,
        panel_columns=settings.panel_columns,
        slab_rows=settings.slab_rows,
        check=settings.check,
        model=machine.model,
        message_bytes=settings.message_bytes,
    )
    moduli, precision_reason, speed = _choose_precision(settings, asked_for, capability, asked)
    asked = replace(asked, moduli=moduli, speed=speed, grid=_choose_grid(asked, machine, request.operands, settings))
    plan = _plan_that_fits(asked, machine, request, settings)

    def decide_with(test: str | None) -> Decision:
        """Have the ranks run this test, or for None measure free memory, and decide again."""
        assert machine.find_out is not None
        return decide(machine.find_out(machine, test, gpus, plan, kernel), request, settings)

    if _memory_is_unknown(plan, machine, gpus, request):
        return decide_with(None)
    needs_reserved = (device == "cuda" and plan.has_row_blocks) and any(
        _bytes_of_arrays(plan, rank, request) > each.gpu_bytes - each.gpu_reserved for rank, each in enumerate(machine.memory)
    )
    transport = _choose_transport(plan, gpus, machine, settings, request)
    if isinstance(transport, str):
        return decide_with(transport)
    name, transport_reason = transport
    plan = plan.with_transport(name)
    # The root makes all H2D and D2H copies itself if it is alone, or sees all ranks' GPUs.
    by_peers = plan.transport == "peers" and len(plan.topology.nodes) == 1
    seen = {gpu.uuid for gpu in machine.ranks[request.root].gpus}
    reaches_all = plan.topology.size == 1 or (by_peers and {gpu.uuid for gpu in gpus if gpu} <= seen)
    if request.operands is OperandLocation.ROOT_ARRAYS and reaches_all:
        plan = replace(plan, operands=request.operands)
    missing = shortage(plan, machine.memory, request)
    # A transport may need larger buffers; and missing memory may have been released since the inventories were taken.
    if _memory_is_unknown(plan, machine, gpus, request) or (missing and not machine.is_measured):
        return decide_with(None)
    if moduli and not plan.moduli:
        cut = settings.panel_rows or settings.panel_columns or settings.slab_rows
        needed = "panels of whole multiples of 128 and no k-slabs would be needed"
        precision_reason = needed if cut else "no room for remainders"
    reasons = "asked for" if asked_for is not None else kernel.reason, device_reason, transport_reason, precision_reason
    expected_speed = speed if plan.moduli else None
    if not plan.moduli and asked_for is None:
        expected_speed = native_speed(capability, machine.model, asked.problem.dtype)
    placements = place_ranks(machine, settings, gpus)
    return Decision(plan, kernel, *reasons, placements, missing, needs_reserved, expected_speed)


def _uses_triangle(topology: Topology, device: str, kernel: Kernel, settings: Settings, row_blocks: bool) -> bool:
    """Whether to compute one triangle of a symmetric C and mirror it: on the CPUs of a node, or on one GPU without a full check,
    which compares all of B with its memory."""
    if len(topology.nodes) > 1:
        return False
    if device == "cpu" and not settings.staged:
        return kernel.name == "blas" and not row_blocks
    return topology.size == 1 and settings.check != "full"


def _choose_device(settings: Settings, kernel: Kernel | None, ranks: Sequence[Inventory]) -> tuple[list[Gpu], str]:
    """Every rank's GPU, or [] for the CPU; and the reason."""
    if settings.device == "cpu":
        return [], "asked for"
    if settings.device == "emulate":
        return [], "asked for: the CPU emulates a GPU"
    if kernel is not None and kernel.device == "cpu":
        return [], f"kernel {kernel.name} runs there"
    without_gpu = [rank for rank, inventory in enumerate(ranks) if not inventory.gpus]
    must = settings.device == "cuda" or (kernel is not None and kernel.device == "cuda")
    if len(without_gpu) == len(ranks) and not must:
        return [], ranks[0].why_no_gpu
    if without_gpu:
        instead = "emulate" if kernel is not None and kernel.source else "cpu"
        who = "every rank" if len(without_gpu) == len(ranks) else f"rank {without_gpu[0]}"
        reason = ranks[without_gpu[0]].why_no_gpu
        raise DeviceUnavailable(f"no usable GPU on {who}: {reason}; mend that, or choose device {instead}")
    chosen = [gpu for gpu in choose_gpus([inventory.gpus for inventory in ranks]) if gpu]  # every rank has one
    return chosen, "asked for" if settings.device == "cuda" else "every rank has a usable GPU"


def _cpu_is_faster(machine: Machine, problem: Problem, settings: Settings) -> bool:
    """Whether a process alone should multiply its arrays on the CPU: the settings leave it free, and the model predicts less
    time."""
    is_free = settings.device == settings.kernel == settings.transport == "auto" and settings.precision != "fast"
    if not is_free or settings.staged or machine.topology.size > 1:
        return False
    threads, model = threads_of_ranks(machine.topology, settings, [machine.ranks[0].processor])[0].count, machine.model
    by_gpu = model.gpu_seconds(problem, 1, through_slots=problem.bytes_of_matrices)  # as if nothing were pinned
    return model.cpu_seconds(problem, threads) < by_gpu


def gpu_for_arrays(machine: Machine, problem: Problem, settings: Settings) -> Gpu | None:
    """The GPU to which a process alone copies arrays for this product; None if its CPU should multiply them."""
    if _cpu_is_faster(machine, problem, settings):
        return None
    chosen, _ = _choose_device(settings, kernel_asked_for(settings), machine.ranks)
    return chosen[0] if chosen else None


_CLEARLY = 1.1  # more GPUs must be faster by this factor: the model errs by as much


def root_is_enough(
    machine: Machine, problem: Problem, settings: Settings, through_slots: int, *, of_integers: bool = False
) -> bool:
    """Whether the root alone may multiply its arrays, and is as fast as all ranks together. `through_slots`: as for
    `MachineModel.gpu_seconds`. `of_integers`: the arrays are integers and fit on the root's GPU."""
    with_gpus = may_use_gpus(settings) and all(rank.gpus for rank in machine.ranks)
    by_ranks = (
        settings.staged or settings.poison or settings.ranks_per_node or settings.transport != "auto" or settings.grid != "auto"
    )
    ranks, model = machine.topology.size, machine.model
    if ranks == 1 or not with_gpus or by_ranks:
        return False
    # One GPU converts integers itself; for several the host converts them to floating-point operands.
    made = problem.bytes_of_matrices / model.cpu_bytes_per_second if of_integers else 0.0
    alone, by_all = (model.gpu_seconds(problem, each, through_slots=through_slots) for each in (1, ranks))
    return alone <= _CLEARLY * by_all + made


def _choose_kernel(asked_for: Kernel | None, device: str, problem: Problem, capability: int) -> Kernel:
    """The requested kernel, or the fastest. UsageError if the requested one cannot compute this product."""
    if asked_for is None:
        return fastest(device, problem.operand_dtype, problem.m, capability)
    refused = refusal(asked_for, problem.operand_dtype, problem.m, capability)
    if refused:
        raise UsageError(refused, code="kernel-unfit")
    return asked_for


def place_ranks(machine: Machine, settings: Settings, gpus: Sequence[Gpu | None]) -> tuple[RankPlacement, ...]:
    """Each rank's cores, threads and GPU. `gpus[rank]`: its GPU."""
    processors = [rank.processor for rank in machine.ranks]
    threads = threads_of_ranks(machine.topology, settings, processors)
    users = {rank: together for together in alike(gpu and gpu.uuid for gpu in gpus) for rank in together}
    return tuple(
        RankPlacement(
            rank,
            machine.memory[rank].host,
            processors[rank].cores,
            threads[rank],
            gpu,
            tuple(other for other in users[rank] if other != rank) if gpu else (),
        )
        for rank, gpu in enumerate(gpus)
    )


_LEAST_GAIN = 1.05  # smallest speedup over native kernels for which remainders are used
# The same for the simulated time when operands are copied. The simulation overestimates launches of small products, and native
# products in k-slabs take up to 8 % less than simulated. On an H100 remainders won at 1.07 (float32, 4000) and 1.13 (float64,
# 10,000) and lost at 1.066 (float64, 8000); on two they won at 1.14 (float32, 5000), lost at 1.08 (float64, 10,000).
_LEAST_GAIN_OVER_LINK, _LEAST_GAIN_OVER_LINKS = 1.07, 1.1


def _choose_precision(
    settings: Settings, asked_for: Kernel | None, capability: int, asked: PlanRequest
) -> tuple[int, str, float]:
    """The most moduli that a tile may need (0: native arithmetic), the reason, and the expected speed relative to the model's
    native products. UsageError for precision `fast` together with a named kernel."""
    problem, fast = asked.problem, settings.precision == "fast"
    if settings.precision == "native":
        return 0, "asked for", 1.0
    if problem.short_operands:
        return 0, f"{problem.short_operands} is multiplied as it is, with sums in float32", 1.0
    if not (problem.n and problem.l and problem.m):
        return 0, "there is nothing to multiply", 1.0
    if problem.l > MOST_TERMS:
        return 0, f"sums have more than {MOST_TERMS:,} terms", 1.0
    if asked_for is not None:
        if fast:
            raise UsageError(
                f"precision fast has kernels of its own: it goes with kernel auto, not with {asked_for.name}",
                code="option-combination",
            )
        return 0, f"kernel {asked_for.name} was asked for", 1.0
    moduli = MOST_MODULI[problem.dtype]
    if asked.device == "emulate":
        return (moduli, "asked for", 1.0) if fast else (0, "faster on an emulated GPU", 1.0)
    if asked.device != "cuda":
        return 0, "only GPUs have units for bytes", 1.0
    known = gain_of_remainders(capability, asked.model, problem, asked.rows, fast=fast)
    if capability < LEAST_FOR_BYTES or known is None:
        return 0, f"nothing is gained on GPUs of compute capability {dotted(capability)}", 1.0
    gain = round(known, 1)
    if gain < _LEAST_GAIN:
        return 0, "faster for this shape", 1.0
    native = native_speed(capability, asked.model, problem.dtype) or 1.0
    if asked.links and not fast:
        least = _LEAST_GAIN_OVER_LINK if asked.links == 1 else _LEAST_GAIN_OVER_LINKS
        from_remainders = replace(asked, speed=native * gain, moduli=moduli)
        if soonest(replace(asked, speed=native))[0] < least * soonest(from_remainders)[0]:
            return 0, "copies take as long as native kernels", 1.0
    return moduli, f"kernels {gain:.1f} × as fast are expected", native * gain


def _choose_grid(asked: PlanRequest, machine: Machine, operands: OperandLocation, settings: Settings) -> grids.Grid | None:
    """The requested grid, or the best; None if every node receives all of B. UsageError for a grid of another number of nodes."""
    nodes = len(asked.topology.nodes)
    grid = grids.parse(settings.grid, nodes)
    blocks_2d = asked.operands is OperandLocation.BLOCKS_2D
    if nodes == 1 and not blocks_2d:
        return None
    # Row blocks can go from GPU to GPU. No network was measured against that, so a grid for GPUs must be requested.
    if asked.copies_to_buffers and not blocks_2d and (grid is None or grid.is_rows):
        return None
    if grid is None:
        # The root's arrays all leave over one link: a grid would save nothing.
        if operands is OperandLocation.ROOT_ARRAYS:
            return None
        memory = min(each.host_bytes for each in machine.memory)
        grid = grids.choose(asked.problem, asked.topology, asked.placement, memory)
    # If C is gathered, row blocks do not count as a grid: broadcasts of B's panels and gathers of C's save the root's link.
    return grid if asked.placed or not grid.is_rows else None


_STEPS_OF_MEMORY = 64  # short memory is rounded down by up to 1/64, so that cached plans are reused


def _plan_that_fits(asked: PlanRequest, machine: Machine, request: PlanRequest, settings: Settings) -> Plan:
    """The plan for unlimited device memory if it fits, else a plan for the free memory. The first kind is cached better, since
    free memory changes between calls."""
    memory = settings.gpu_memory
    if asked.device == "cuda":
        users = Counter(each.gpu_id for each in machine.memory)
        memory = max(1, min(each.gpu_bytes // users[each.gpu_id] for each in machine.memory))
        if asked.row_blocks:  # each rank's rows of C are there as well
            of_c = asked.problem.bytes(asked.rows, asked.problem.m)
            memory = max(1, memory - of_c - max(request.besides_on_gpu, default=0))
    plan = make_plan(asked)
    if not memory or _fits(plan, memory, settings):
        return plan
    if plan.moduli and settings.precision != "fast":
        asked = replace(asked, moduli=0)
        plan = make_plan(asked)
        if _fits(plan, memory, settings):
            return plan
    asked = replace(asked, problem=replace(asked.problem, symmetric=""))  # a triangle requires that all panels fit
    return make_plan(replace(asked, device_memory=memory - memory % max(1, memory // _STEPS_OF_MEMORY)))


def _fits(plan: Plan, memory: int, settings: Settings) -> bool:
    """Whether the plan fits on all ranks' devices, including NCCL's slots between nodes if NCCL may be chosen."""
    if len(plan.topology.nodes) > 1 and settings.transport in ("auto", "nccl") and not why_no_nccl(plan):
        plan = plan.with_transport("nccl")
    return all(plan.bytes_of_buffers(rank) + plan.bytes_of_device_check(rank) <= memory for rank in range(plan.topology.size))


def _memory_is_unknown(plan: Plan, machine: Machine, gpus: Sequence[Gpu | None], request: PlanRequest) -> bool:
    """Whether some rank needs more GPU memory than it holds, without having queried the driver for free memory.

    A repeated product needs no more, and a query takes as long as a small product.
    """
    if machine.is_measured:
        return False
    for rank, (memory, gpu) in enumerate(zip(machine.memory, gpus, strict=True)):
        if memory.gpu_id != (gpu.uuid if gpu else ""):
            return True
        enough = plan.bytes_on_gpu(rank) <= memory.gpu_reserved and _bytes_of_arrays(plan, rank, request) <= memory.gpu_pooled
        if plan.device == "cuda" and not enough:
            return True
    return False


def _bytes_of_arrays(plan: Plan, rank: int, request: PlanRequest) -> int:
    """GPU memory of a rank beside its buffers: C of row blocks, and the request's `besides_on_gpu`."""
    of_c = plan.problem.bytes(len(plan.shares[rank].rows), plan.problem.m) if plan.has_row_blocks else 0
    return of_c + (request.besides_on_gpu[rank] if request.besides_on_gpu else 0)


def _choose_transport(
    plan: Plan, gpus: Sequence[Gpu | None], machine: Machine, settings: Settings, request: PlanRequest
) -> tuple[str, str] | str:
    """The requested transport, or the fastest that works, with the reason; or the name of a test that must run first.
    DeviceUnavailable if the requested transport does not work.

    The fastest is peers; NCCL if each node has one rank, or the GPUs of a single node cannot reach each other; otherwise host,
    and also for a small B that all ranks of a node see in its memory.
    """
    asked_for, nodes, size = settings.transport, len(plan.topology.nodes), plan.topology.size
    if not plan.staged:
        if asked_for not in ("auto", "host"):
            raise DeviceUnavailable(f"the transport {asked_for} cannot be used: a CPU multiplies, and no GPU", code="transport")
        return "in place", "a CPU multiplies the matrices where they lie"
    if asked_for == "host":
        return "host", "asked for"
    if asked_for == "auto" and plan.device != "cuda":
        return "host", "all memory is a CPU's own"
    no = {"peers": why_no_peers(plan), "nccl": why_no_nccl(plan)}
    if plan.device == "cuda" and (shared := [users for users in alike(gpu and gpu.uuid for gpu in gpus) if len(users) > 1]):
        no["nccl"] = no["nccl"] or f"ranks {shared[0][0]} and {shared[0][1]} share a GPU"
    order = [asked_for]
    if asked_for == "auto":
        order = ["nccl"] if nodes == size else ["peers"] if nodes > 1 or no["nccl"] else ["peers", "nccl"]
        bytes_of_b = plan.problem.operand_bytes(plan.problem.l, plan.problem.m)
        seen_by_all = not request.on_gpus and (nodes > 1 or request.operands is not OperandLocation.ROOT_ARRAYS)
        if not no[order[0]] and seen_by_all and bytes_of_b < machine.model.least_exchange_bytes:
            return "host", "B is small"
    refused = [no[order[0]]] if no[order[0]] else []
    for name in order if not refused else ():
        if name not in machine.outcomes:
            return name
        if not machine.outcomes[name]:
            return name, TESTED[name] if asked_for == "auto" else "asked for"
        refused.append(machine.outcomes[name])
    if asked_for != "auto":
        raise DeviceUnavailable(f"the transport {asked_for} cannot be used: {refused[0]}", code="transport")
    return "host", "; ".join(refused)


_MOST_ON_GPU = 1 << 33  # multiply-adds of one product: a larger one keeps all ranks' GPUs busy, and hides its copies
_STACK_KERNELS = ("", "blas", "cublas")  # kernels that multiply whole stacks; "": auto


def place_stack(
    machine: Machine, settings: Settings, count: int, problem: Problem, bytes_of_ranks: Sequence[int]
) -> tuple[RankPlacement, ...] | None:
    """The ranks' placements, if each computes whole products of a stack of `count`.

    None if the ranks must share each product instead: there are fewer products than ranks, products are too large, the kernel
    cannot multiply stacks, or the ranks' matrices do not fit into their nodes' memory.
    """
    kernel = kernel_asked_for(settings)
    if settings.device == "emulate" or settings.staged or (kernel.name if kernel else "") not in _STACK_KERNELS:
        return None
    if count < machine.topology.size:
        return None
    gpus, _ = _choose_device(settings, kernel, machine.ranks)
    if gpus and problem.n * problem.l * problem.m > _MOST_ON_GPU:
        return None
    needed: Counter[str] = Counter()  # by host, which may hold several pretended nodes
    for memory, taken in zip(machine.memory, bytes_of_ranks, strict=True):
        needed[memory.host] += taken + PROCESS_BYTES
    if any(needed[memory.host] > memory.host_bytes for memory in machine.memory):
        return None
    return place_ranks(machine, settings, tuple(gpus) or (None,) * machine.topology.size)
