# SPDX-License-Identifier: MIT
"""`--explain`: prints the plan for a machine, with its bytes. It needs neither MPI nor a GPU."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from hybrid.classroom.gpu_models import GpuModel, model_of
from hybrid.commands.matmul import how_computed, product_asked_for
from hybrid.core.problem import Problem, Topology
from hybrid.core.settings import Settings
from hybrid.core.text import readable, rounded_up
from hybrid.errors import DeviceUnavailable, UsageError
from hybrid.execution.real_products import exactly
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, named
from hybrid.planning.arithmetic import PART_OF_PEAK, largest_error_bound
from hybrid.planning.decision import TESTED, Decision, Gpu, Inventory, Machine, Processor, decide
from hybrid.planning.grid import Cost, Grid, costs, received
from hybrid.planning.machine_model import MachineModel
from hybrid.planning.plan import PIECE_BYTES, PROCESS_BYTES, FreeMemory, Plan
from hybrid.planning.schedule import RankShare
from hybrid.planning.tiling import PlanRequest, forecast
from hybrid.ranks.launcher import launched
from hybrid.reporting.run_report import moved_bytes

_SHOWN = 4  # grids besides the chosen one


def _grid_lines(plan: Plan, network: float) -> Iterator[str]:
    """Lines about the chosen grid and the best others. `network`: bytes a second of a node's link; 0 if unknown."""
    problem, topology = plan.problem, plan.topology
    nodes = len(topology.nodes)
    placement = PlanRequest(problem, topology, root=plan.root).placement
    found = costs(problem, topology, placement)
    chosen = plan.grid_layout.grid if plan.grid_layout is not None else Grid(nodes, 1)
    other = next(node for node in (nodes - 1, 0) if node != plan.root_node)

    def said(grid: Grid, cost: Cost) -> str:
        at_root = problem.bytes(1, cost.received)
        elsewhere = problem.bytes(1, sum(received(grid, other, problem, topology, placement)))
        seconds = f", {max(at_root, elsewhere) / network:.3g} s of its link" if network else ""
        name = "rows" if grid.is_rows else str(grid)
        return f"{name}: a node receives {readable(elsewhere)}, the busiest {readable(at_root)}{seconds}"

    others = {str(cost.grid): cost for cost in reversed(found) if str(cost.grid) != str(chosen)}  # the best of each name
    yield from (f"grid {said(cost.grid, cost)} (chosen)" for cost in found if cost.grid == chosen)
    for cost in sorted(others.values(), key=found.index)[:_SHOWN]:
        yield f"grid {said(cost.grid, cost)}"
    if plan.staged and plan.grid_layout is None:
        yield "devices with memory of their own multiply on a grid where --grid asks for one"
    words, least = sum(received(chosen, other, problem, topology, placement)), least_received(problem, nodes)
    bound = f"at least {readable(int(problem.item_size * least))} must go to or from some node"
    yield f"{bound}, however A, B and C are distributed: {words / least if least else 1:.2f} × that"


def least_received(problem: Problem, nodes: int) -> float:
    """A lower bound on the elements that some node must receive or send, whatever its memory and however A, B and C are
    distributed: Al Daas, Ballard, Grigori, Kumar and Rouse (2022).

    A node's multiply-adds form a box in (n, l, m). The node needs the elements of the box's faces, and already has its share of
    the matrices.
    """
    small, middle, large = sorted((problem.n, problem.l, problem.m))
    if nodes * middle <= large:
        needed = (large * middle + large * small) / nodes + middle * small
    elif nodes * small * small <= large * middle:
        needed = 2 * math.sqrt(large * middle * small * small / nodes) + large * middle / nodes
    else:
        needed = 3 * (large * middle * small / nodes) ** (2 / 3)
    return needed - (large * middle + large * small + middle * small) / nodes


_RANKS_SHOWN = 16
_TILES_COUNTED = 10_000
_MOST_OF_A_NODE = 1024  # ranks
_UNLIMITED = 1 << 200  # bytes of a memory without a given limit


def published_model(gpu: GpuModel) -> MachineModel:
    """The model of a GPU that was not measured: of its published rates, the fractions that an H200 reaches (all of float64
    without tensor cores). UsageError if no rates are known."""
    if not gpu.link:
        raise UsageError(f"no such rates of {gpu.name} are known here: --capability gives its kind", code="setting")
    link = 0.86e9 * gpu.link
    giga = 1e9 / link  # a multiply-add is two operations
    return MachineModel(
        link,
        float64_multiply_adds_per_byte=giga / 2 * (0.85 * gpu.matrix_float64 or gpu.float64),
        float32_multiply_adds_per_byte=giga / 2 * 0.8 * gpu.float32,
        half_multiply_adds_per_byte=giga / 2 * gpu.int8 / (4 if gpu.matrix_float64 else 8),
        byte_multiply_adds_per_byte=giga / 2 * PART_OF_PEAK[gpu.capability] * gpu.int8,
        memory_bytes_per_byte=giga * 0.73 * gpu.bandwidth,
    )


def explain(options: argparse.Namespace, settings: Settings) -> None:
    """Print the plan for the machine that the options describe, then raise what would refuse a run."""
    product = product_asked_for(options)
    settings = exactly(settings, product.types)
    launch = launched()
    ranks = options.ranks or (launch.size if launch else 1)
    if options.nodes:
        settings = replace(settings, ranks_per_node=-(-ranks // options.nodes))
    gpus, capability = options.gpus_per_node, options.capability or EMULATED_CAPABILITY
    if options.gpu:
        gpu = model_of(options.gpu)
        gpus, capability, model = gpus or 1, gpu.capability, published_model(gpu)
        settings = replace(settings, gpu_memory=settings.gpu_memory or int(1e9 * gpu.memory))
        print(f"{gpu}: parts of the rates in {gpu.source} are expected; nothing was measured here")
    else:
        model = MachineModel.read(settings.machine)
    machine = _assumed_machine(settings, ranks, gpus, capability, model)
    request = PlanRequest(product.problem, besides=(product.bytes_beside, *[0] * (ranks - 1)))
    if options.resume:
        from hybrid.commands.matmul_resume import part_to_explain

        request, line = part_to_explain(machine, product, options, settings)
        print(line)
    if line := how_computed(product):
        print(f"{product}, {line.strip()}:")
    decision = decide(machine, request, settings)
    print("\n".join(_lines(decision, machine, request, settings)), flush=True)
    if len(decision.plan.topology.nodes) > 1:
        network = options.network or (model.network_bytes_per_second if settings.machine else 0.0)
        print("\n".join(_grid_lines(decision.plan, network)), flush=True)
    if decision.shortage:
        raise decision.shortage
    limited = settings.gpu_memory or settings.host_memory
    print("it fits" if limited else "memory not checked: --host-memory and --gpu-memory give it")


def _assumed_machine(settings: Settings, ranks: int, gpus_per_node: int, capability: int, model: MachineModel) -> Machine:
    """An assumed machine: memory that the settings do not limit is unlimited, and every test passes.

    `gpus_per_node`: 0: no GPUs, or one for each rank if the device or kernel asked for needs GPUs.
    """
    per_node = min(ranks, settings.ranks_per_node or gpus_per_node or ranks)
    if per_node > _MOST_OF_A_NODE:
        raise UsageError(f"{per_node} ranks on a node: {_MOST_OF_A_NODE} at most; --nodes gives more nodes", code="number")
    topology, kernel = Topology.of_equal_nodes(ranks, per_node), named(settings.kernel)
    needs_gpus = settings.device == "cuda" or (settings.device == "auto" and kernel is not None and kernel.device == "cuda")
    wanted = gpus_per_node if settings.device in ("auto", "cuda") else 0
    host, on_gpu = settings.host_memory or _UNLIMITED, settings.gpu_memory or _UNLIMITED
    inventories: list[Inventory] = []
    for node, members in enumerate(topology.nodes):
        count = wanted or (len(members) if needs_gpus else 0)
        gpus = tuple(Gpu(index, f"node {node} GPU {index}", "assumed", capability) for index in range(count))
        for number in range(len(members)):
            memory = FreeMemory(f"node {node}", host, on_gpu, gpus[number % count].uuid if gpus else "")
            why_no_gpu = "" if gpus else "no GPU is assumed: --gpus-per-node gives their number"
            inventories.append(Inventory(Processor((number,), None, {}), gpus, why_no_gpu, memory, 0, model))
    return Machine(topology, tuple(inventories), dict.fromkeys(TESTED, ""))


def _lines(decision: Decision, machine: Machine, request: PlanRequest, settings: Settings) -> Iterator[str]:
    """Lines about each rank's rows and the memory that they take."""
    plan, p = decision.plan, decision.plan.problem
    sizes = f"C ({p.n}×{p.m}) = A ({p.n}×{p.l}) · B ({p.l}×{p.m})  {p.operand_dtype}"
    yield f"{sizes}  {p.operations / 1e9:.3g} GF  matrices {readable(p.bytes_of_matrices)}"
    yield f"kernel {decision.kernel.name} on {plan.device}: {decision.kernel_reason}"
    if plan.device != "cpu" and not plan.moduli:
        yield f"precision native: {decision.precision_reason}"
    elif plan.device != "cpu":
        error = largest_error_bound(p.l, p.dtype, fast=settings.precision == "fast")
        yield (
            f"precision {p.dtype} or better, from remainders modulo {plan.moduli} numbers at most, else native as the guard "
            f"finds: {decision.precision_reason}; errors of what is not native are proved to be at most "
            f"{rounded_up(error)}·|A||B|"
        )
    yield from (_node(plan, node) for node in range(len(plan.topology.nodes)))
    yield from (_rank(decision, share) for share in plan.shares[:_RANKS_SHOWN])
    if plan.topology.size > _RANKS_SHOWN:
        yield f"… and {plan.topology.size - _RANKS_SHOWN} ranks more"
    if plan.staged:
        yield _transport(decision, machine, request, settings)
    first = (plan.parts[0] if plan.parts else plan).shares[0]
    if not first.holds_all:
        yield _out_of_core(first)
    nodes = len(plan.topology.nodes)
    if nodes == 1 and plan.device == "cuda" and decision.speed is not None:
        yield from _forecast(decision, machine, decision.speed)
    if nodes > 1:
        of_c = readable(moved_bytes(plan, "gather"))
        of_b = f"to {nodes - 1} more" if plan.grid_layout is None else "and A where the grid needs them"
        how = f"B {of_b}, {of_c} of C back to node {plan.root_node}, in messages of at most {readable(settings.message_bytes)}"
        if plan.c_between_devices:
            members, at_most = plan.topology.nodes[plan.root_node], readable(PIECE_BYTES)
            receivers = f"ranks {members[0]}–{members[-1]} of node {plan.root_node}, in pieces of at most {at_most}"
            how = f"B from GPU to GPU, {of_c} of C from GPU to GPU to {receivers}"
        yield f"between nodes: {how}"


def _node(plan: Plan, node: int) -> str:
    ranks, rows = plan.topology.nodes[node], plan.rows_on(node)
    of_b = f"rows {rows['B']}" if plan.b_stays_parted else "all"
    return (
        f"node {node}: ranks {ranks[0]}–{ranks[-1]}, rows {rows['A']} of A, "
        f"{of_b} of B, rows {rows['C']} of C: {readable(plan.bytes_shared_on_node(node))} shared, "
        f"{readable(plan.bytes_on_node(node))} with its processes ({readable(PROCESS_BYTES)} each)"
    )


def _rank(decision: Decision, share: RankShare) -> str:
    """The line about a rank: its rows, the pieces in which they are multiplied, and the memory for them."""
    plan, gpu = decision.plan, decision.placements[share.rank].gpu
    where = f"GPU {gpu.index}" if gpu else "its own buffers"
    if (layout := plan.grid_layout) is not None:
        a, c, panels = layout.rows_of_a(share.rank), layout.part_of_c(share.rank), layout.pieces["B"]
        pieces = ""
        if plan.parts:
            own = plan.parts[share.rank].shares[0].pieces_of_b
            pieces = f"; {readable(plan.bytes_of_buffers(share.rank))} in {where}, for {own} of its own"
        return (
            f"rank {share.rank}: rows {share.rows} of A and {share.b_rows} of B; it multiplies rows {a.rows}, "
            f"columns {a.columns} of A by columns {c.columns} of B, in {panels} column panel(s){pieces}"
        )
    buffers, tiles = plan.bytes_of_buffers(share.rank), sum(1 for _ in islice(share.tiles(), _TILES_COUNTED))
    return (
        f"rank {share.rank}: rows {share.rows} in {len(share.row_panels)} row panel(s), "
        f"B in {share.pieces_of_b} {'k-slab' if share.slabs else 'column panel'}(s), "
        f"{tiles}{'+' if tiles == _TILES_COUNTED else ''} tile(s) of C, "
        + (f"{readable(buffers)} in {where}" if buffers else "multiplied in place")
    )


def _transport(decision: Decision, machine: Machine, request: PlanRequest, settings: Settings) -> str:
    """The transport; if tests decide on it, also what they try, and the fallback."""
    plan = decision.plan
    problem = plan.parts[0].problem if plan.parts else plan.problem
    of_b = readable(problem.bytes(problem.l, problem.m))
    if plan.transport == "host":
        return f"transport host: {decision.transport_reason}; each link carries all of the {of_b} of B that its rank needs"
    others = {"peers": "fetches the rest from the GPUs of its node's other ranks", "nccl": "NCCL broadcasts it to all other GPUs"}
    without_peers = settings.transport == "nccl" or len(plan.topology.nodes) == plan.topology.size
    tested = ["nccl"] if without_peers else ["peers", "nccl"] if plan.transport == "nccl" else ["peers"]
    tests = " and ".join(f"“{TESTED[test]}”" for test in tested)
    try:
        otherwise = decide(replace(machine, outcomes=dict.fromkeys(TESTED, "the test failed")), request, settings).plan.transport
    except DeviceUnavailable:
        otherwise = "the run is refused"
    return (
        f"transport {plan.transport}, if these tests pass at the start: {tests}; each rank loads its own rows of the {of_b} of B "
        f"over its link, and {others[plan.transport]}; else {otherwise}"
    )


def _forecast(decision: Decision, machine: Machine, speed: float) -> Iterator[str]:
    """The expected times at which rank 0, whose row block is among the tallest, has copied and multiplied everything; no line for
    a product of very many pieces."""
    plan = decision.plan
    model, links = machine.model, plan.topology.size if plan.transport != "host" else 1
    arrivals = [*islice(plan.shares[0].arrivals(), _TILES_COUNTED)]
    if len(arrivals) == _TILES_COUNTED:
        return
    moments = forecast(plan.problem, arrivals, model, speed, links, moduli=plan.moduli)
    copied_in, multiplied, copied_out = (f"{moved / model.link_bytes_per_second:.3g} s" for moved in moments)
    yield (
        f"expected of rank 0, by a link of {model.link_bytes_per_second / 1e9:.3g} GB/s and without the check: A and B copied "
        f"after {copied_in}, multiplied after {multiplied}, C copied back after {copied_out}"
    )


def _out_of_core(share: RankShare) -> str:
    of_a = ("A", "row panels", len(share.row_panels), share.tiling.row_panels)
    of_b = ("B", "column panels", len(share.column_panels), share.tiling.column_panels)
    stationary, streamed = (of_a, of_b) if share.tiling.stationary == "A" else (of_b, of_a)
    return (
        f"rank {share.rank} cannot hold all: {stationary[0]} is stationary, {stationary[3]} of {stationary[2]} {stationary[1]} "
        f"at a time, while {streamed[0]} is streamed past, {streamed[3]} of {streamed[2]} {streamed[1]} at a time"
    )
