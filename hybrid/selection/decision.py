# SPDX-License-Identifier: MIT
"""The decision: from a machine, a product and the settings to device, kernel, plan and transport.

`decide` is a pure function. A run calls it with what its ranks found, `--explain` with an assumed machine. Where it depends on
something that nobody has measured yet, it returns that as an `Unknown`, and is called again when the ranks have found out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hybrid.core.problem import Problem
from hybrid.core.record import record
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.devices.cuda_gpus import Gpu
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, Kernel
from hybrid.plan import possible_transports
from hybrid.plan.capacity import FreeMemory, Shortage, shortage
from hybrid.plan.grid import Placement
from hybrid.plan.plan import Plan
from hybrid.plan.planning import make_plan
from hybrid.plan.request import OperandLocation, PlanRequest, RowBlocks, TilingRequest
from hybrid.selection.grid import choose_grid
from hybrid.selection.kernel import choose_kernel, kernel_asked_for, multiplies_short
from hybrid.selection.machine import Machine, Test
from hybrid.selection.placement import RankPlacement, choose_device, place_ranks
from hybrid.selection.precision import Precision, choose_precision, native_speed
from hybrid.selection.transport import choose_transport, may_leave_out

_STEPS_OF_MEMORY = (
    64  # to which free memory is rounded down where it is short, so that plans, which are cached, can be used again
)


@record
class ProductRequest:
    """The product that all ranks want.

    `operands`: where A and B lie. `bytes_there`: how many bytes of the matrices the root holds already. `besides[rank]`: host
    memory that a rank takes for other things; `besides_on_gpu[rank]`: the same of its GPU's memory, where GPUs multiply.
    `left_out`: ranks that get no rows, where others of their node can take them.
    """

    problem: Problem
    operands: OperandLocation = OperandLocation.NODE_SHARED
    root: int = 0
    row_blocks: RowBlocks | None = None
    blocks_2d: Placement | None = None
    bytes_there: int = 0
    besides: tuple[int, ...] = ()
    besides_on_gpu: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()

    @property
    def converted(self) -> ProductRequest:
        """The same product, for whose operands of 16 bits the root makes float32 matrices first."""
        p = self.problem
        there = self.bytes_there - p.operand_bytes(p.n, p.l) - p.operand_bytes(p.l, p.m)
        return replace(self, problem=p.with_operands(""), bytes_there=max(0, there))


@record
class Decision:
    """How a product is to be computed: the same on all ranks."""

    plan: Plan
    kernel: Kernel
    kernel_reason: str
    device_reason: str
    transport_reason: str
    precision_reason: str  # why tiles may come from remainders, or are native
    placements: tuple[RankPlacement, ...]
    tested: tuple[Test, ...] = ()  # the tests on whose outcomes the choice of the transport depended
    shortage: Shortage | None = None  # the memory that is missing, where the plan does not fit
    needs_reserved: bool = False  # C fits only once the buffers of earlier products are given back
    speed: float | None = None  # expected of the kernels, relative to the machine model's native ones; None: not known

    @property
    def reads_transposed(self) -> bool:
        """Whether transposed operands are read as they lie: by BLAS's transposition, or by copies to devices, which transpose."""
        return self.plan.staged or self.kernel.name == "blas"

    def device_of(self, rank: int) -> str:
        """Rank, host, device and kernel, for messages."""
        placement = self.placements[rank]
        device = "" if placement.gpu else f", device {self.plan.device}"
        return f"{placement.name}{device}, kernel {self.kernel.name}"

    def multiplied_by(self, row: int, columns: Span) -> tuple[str, int | None]:
        """Who computed these elements of C, for messages; and the rank, where it was one."""
        ranks = self.plan.multiplied_by(row, columns)
        return " or ".join(map(self.device_of, ranks)), ranks[0] if len(ranks) == 1 else None


@record
class Unknown:
    """What has to be found out before the decision: the outcome of `test`, or, where that is None, the memory that is free now.

    `gpus`, `plan` and `kernel` are what the test is to be made with.
    """

    test: Test | None
    gpus: tuple[Gpu | None, ...]
    plan: Plan
    kernel: Kernel


def decide(machine: Machine, request: ProductRequest, settings: Settings) -> Decision | Unknown:
    """Choose device, kernel, plan and transport. UsageError or DeviceUnavailable where what is asked for cannot be had."""
    kernel = kernel_asked_for(settings)
    chosen, device_reason = choose_device(settings, kernel, machine.ranks)
    gpus = tuple(chosen) or (None,) * machine.topology.size
    device = "cuda" if chosen else "emulate" if settings.device == "emulate" else "cpu"
    capability = min((gpu.capability for gpu in chosen), default=EMULATED_CAPABILITY)
    if request.problem.short_operands and not (
        len(machine.topology.nodes) == 1
        and settings.precision != "fast"
        and multiplies_short(kernel, device, request.problem, capability)
    ):
        request = request.converted
    choice = choose_kernel(kernel, device, request.problem, capability)
    precision = choose_precision(settings, kernel, device, capability, tallest := _tallest_row_block(request, machine))
    plan = _plan_that_fits(machine, request, settings, device, choice.kernel, precision)
    if _memory_is_unknown(plan, machine, gpus, request):
        return Unknown(None, gpus, plan, choice.kernel)
    needs_reserved = device == "cuda" and plan.has_row_blocks and _c_needs_reserved_memory(plan, machine.memory, request)
    transport = choose_transport(plan, gpus, machine, settings)
    if isinstance(transport, Test):
        return Unknown(transport, gpus, plan, choice.kernel)
    plan = plan.with_transport(transport.name)
    if request.operands is OperandLocation.ROOT_ARRAYS and _root_reaches_all(plan, gpus, machine.ranks[request.root].gpus):
        plan = replace(plan, operands=request.operands)
    there = request.bytes_there if plan.operands is request.operands else 0
    on_gpu = request.besides_on_gpu
    missing = shortage(plan, machine.memory, already_there=there, besides=request.besides, besides_on_gpu=on_gpu)
    # A transport may take larger buffers; and what is missing may have been given back since the inventories were taken.
    if _memory_is_unknown(plan, machine, gpus, request) or (missing and not machine.free):
        return Unknown(None, gpus, plan, choice.kernel)
    placements = place_ranks(machine, settings, gpus)
    why_so_precise = precision.reason if plan.moduli or not precision.moduli else _why_no_remainders(settings)
    reasons = choice.reason, device_reason, transport.reason, why_so_precise
    speed = precision.speed if plan.moduli else None if kernel is not None else native_speed(capability, tallest)
    return Decision(plan, choice.kernel, *reasons, placements, transport.tested, missing, needs_reserved, speed)


def _tallest_row_block(request: ProductRequest, machine: Machine) -> TilingRequest:
    """The tallest row block that a rank multiplies, on which, beside the kernels, the time of the product depends."""
    nodes = machine.topology.nodes
    rows, links = len(machine.topology.rows_of_rank(0, request.problem.n)), max(map(len, nodes))
    if request.row_blocks is not None:  # on the devices already
        rows, links = max(map(len, request.row_blocks.a)), 0
    return TilingRequest(request.problem, rows, "cuda", len(nodes), links, model=machine.model)


def _memory_is_unknown(plan: Plan, machine: Machine, gpus: Sequence[Gpu | None], request: ProductRequest) -> bool:
    """Whether some rank needs more of its GPU's memory than it holds already, and has not asked the driver how much is free.

    The usual product, which is like the one before, needs no more. Asking the driver would take as long as a small product.
    """
    if machine.free:
        return False
    for rank, (memory, gpu) in enumerate(zip(machine.memory, gpus, strict=True)):
        if memory.gpu_id != (gpu.uuid if gpu else ""):
            return True
        enough = plan.bytes_on_gpu(rank) <= memory.gpu_reserved and _bytes_of_arrays(plan, rank, request) <= memory.gpu_pooled
        if plan.device == "cuda" and not (memory.gpu_queried or enough):
            return True
    return False


def _plan_that_fits(
    machine: Machine, request: ProductRequest, settings: Settings, device: str, kernel: Kernel, precision: Precision
) -> Plan:
    """The plan: without regard to the devices' memory if that plan fits, else one for what is free. Free memory changes from call
    to call, and plans, which are cached, would change with it."""
    problem, row_blocks = request.problem, request.row_blocks
    memory = settings.gpu_memory
    if device == "cuda":
        users = Counter(each.gpu_id for each in machine.memory)
        memory = max(1, min(each.gpu_bytes // users[each.gpu_id] for each in machine.memory))
        if row_blocks:  # each rank's rows of C lie there as well
            of_c = problem.bytes(max(map(len, row_blocks.a)), problem.m)
            memory = max(1, memory - of_c - max(request.besides_on_gpu, default=0))
    asked = PlanRequest(
        problem,
        machine.topology,
        root=request.root,
        device=device,
        staged=settings.staged,
        accumulates=kernel.adds,
        moduli=precision.moduli,
        speed=precision.speed,
        panel_rows=settings.panel_rows,
        panel_columns=settings.panel_columns,
        slab_rows=settings.slab_rows,
        check=settings.check,
        row_blocks=row_blocks,
        blocks_2d=request.blocks_2d,
        model=machine.model,
        left_out=request.left_out if may_leave_out(settings) else (),
        message_bytes=settings.message_bytes,
    )
    asked = replace(asked, grid=choose_grid(asked, machine, request.operands, settings))
    plan = make_plan(asked)
    if not memory or _fits(plan, memory, settings):
        return plan
    if plan.moduli and settings.precision != "fast":
        asked = replace(asked, moduli=0)
        plan = make_plan(asked)
        if _fits(plan, memory, settings):
            return plan
    return make_plan(replace(asked, device_memory=memory - memory % max(1, memory // _STEPS_OF_MEMORY)))


def _why_no_remainders(settings: Settings) -> str:
    if settings.panel_rows or settings.panel_columns or settings.slab_rows:
        return "panels of whole multiples of 128 and no k-slabs would be needed"
    return "no room for remainders"


def _fits(plan: Plan, memory: int, settings: Settings) -> bool:
    """Whether all ranks' devices have room, also for what NCCL needs between nodes, where that may be chosen."""
    if len(plan.topology.nodes) > 1 and settings.transport in ("auto", "nccl") and not possible_transports.why_no_nccl(plan):
        plan = plan.with_transport("nccl")
    return all(plan.bytes_of_buffers(rank) + plan.bytes_of_device_check(rank) <= memory for rank in range(plan.topology.size))


def _c_needs_reserved_memory(plan: Plan, free: Sequence[FreeMemory], request: ProductRequest) -> bool:
    """Whether the ranks' rows of C fit on the GPUs only without the buffers that earlier products left there."""
    return any(_bytes_of_arrays(plan, rank, request) > each.gpu_bytes - each.gpu_reserved for rank, each in enumerate(free))


def _bytes_of_arrays(plan: Plan, rank: int, request: ProductRequest) -> int:
    """What the rank's GPU holds beside its buffers: C where there are row blocks, and what the request has `besides_on_gpu`."""
    of_c = plan.problem.bytes(len(plan.shares[rank].rows), plan.problem.m) if plan.has_row_blocks else 0
    return of_c + (request.besides_on_gpu[rank] if request.besides_on_gpu else 0)


def _root_reaches_all(plan: Plan, gpus: Sequence[Gpu | None], seen_by_root: Sequence[Gpu]) -> bool:
    """Whether the root can copy to and from the buffers of all ranks itself: it is alone, or sees all their GPUs."""
    if plan.topology.size == 1:
        return True
    one_node = len(plan.topology.nodes) == 1
    return plan.transport == "peers" and one_node and {gpu.uuid for gpu in gpus if gpu} <= {gpu.uuid for gpu in seen_by_root}
