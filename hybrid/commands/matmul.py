# SPDX-License-Identifier: MIT
"""The command: python -m hybrid.matmul n l m. C (n×m) = A (n×l) · B (l×m) by all ranks of the job."""

from __future__ import annotations

import argparse
import gc
import io
import signal
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING

from hybrid.commands.cli import run
from hybrid.commands.matmul_operands import product_asked_for
from hybrid.commands.matmul_options import parse
from hybrid.commands.matmul_report import Speaker, how_computed
from hybrid.core.settings import Settings
from hybrid.core.wall import wall
from hybrid.kernels.catalogue import CATALOGUE
from hybrid.ranks.launcher import launched, rank_by_launcher
from hybrid.ranks.team import Team
from hybrid.selection.inventory import wake_gpus

if TYPE_CHECKING:
    from hybrid.arrays.typed_product import TypedProduct
    from hybrid.selection.machine import Inventory
    from hybrid.selection.session import Session

NAME = "hybrid.matmul"


def work(team: Team, options: argparse.Namespace, settings: Settings) -> int:
    """One rank's part of the command."""
    from hybrid.selection.inventory import same_on_all_ranks, settle_threads

    wall.enter("agree")
    with team.phase("agree", timed=False) as asking:
        asking.mine = {**vars(options), **settings.as_dict()}
    same_on_all_ranks(asking.all)
    team.pretend_nodes(settings.ranks_per_node)
    settle_threads(team, settings)
    wall.enter("imports")
    # From here on NumPy may be loaded: it finds the number of threads in the environment.
    from hybrid.core.timeline import Timeline
    from hybrid.execution.calls import exactly, threads_until_decided
    from hybrid.execution.energy_meter import EnergyMeter
    from hybrid.execution.outcome import RunOptions
    from hybrid.execution.product_file import product_output, write_product
    from hybrid.execution.typed_product import run_typed_product
    from hybrid.selection.agreement import agree
    from hybrid.selection.decision import ProductRequest
    from hybrid.selection.inventory import take_inventory
    from hybrid.selection.session import session_of

    gc.enable()
    wall.enter("agree")
    session = session_of(team)
    with team.phase("agree", timed=False) as looking:
        _refuse_unwritable(options)
        product = product_asked_for(options, len(team.node_ranks), load=True)
        shape = product.sizes[0], product.sizes[2]
        output = product_output(team, shape, product.result, options.out) if options.out and not options.resume else None
        looking.mine = take_inventory(session, settings)
    product = product.looked_at(team, threads_until_decided(team, settings))
    settings = exactly(settings, product.types)
    speaker = Speaker(team, options, product)
    if options.resume:
        return _resume(session, options, settings, product, looking.all, speaker)
    besides = tuple(product.bytes_beside if rank == 0 else 0 for rank in range(team.size))
    decision = agree(session, ProductRequest(product.problem, besides=besides), settings, looking.all)
    meter = EnergyMeter(team, decision.placements)
    speaker.begin(decision)
    team.timeline = Timeline(traced=bool(options.trace))
    warmup = options.warmup if options.warmup is not None else int(decision.plan.device == "cuda")
    with speaker.progress(decision.plan, (warmup + options.repeat) * len(product.primes)) as progress:
        how = RunOptions(options.repeat, warmup, progress=progress, measuring=meter.reading)
        outcome = run_typed_product(session, decision, product, settings, how)
        good = outcome.check is None or outcome.check.ok
        wall.enter("write")
        if output and good:  # a product that failed its check is not worth a file
            write_product(team, decision.plan, outcome.c.array, output)
    wall.enter("end")
    energy = meter.total(outcome.repeats)
    with team.phase("report", timed=False):
        speaker.end(outcome, {"warmup": warmup}, settings, energy)
    if not good:
        return 3
    return 0 if outcome.repeats == options.repeat else 128 + signal.SIGTERM


def _resume(
    session: Session,
    options: argparse.Namespace,
    settings: Settings,
    typed: TypedProduct,
    inventories: Sequence[Inventory],
    speaker: Speaker,
) -> int:
    """C part by part, after those that an earlier job has written."""
    from hybrid.commands.matmul_resume import carried_out, prepared
    from hybrid.execution.energy_meter import EnergyMeter
    from hybrid.reporting.run_report import parts_line

    problem = typed.problem
    product = prepared(session, options, settings, typed, inventories)
    there, meter = product.rows_there, EnergyMeter(session.team, product.decision.placements)
    speaker.begin(product.decision, parts_line(product.rows, problem.n, there, f"the checksums of {product.name}"))
    plan = replace(product.decision.plan, problem=replace(problem, n=problem.n - there))
    with speaker.progress(plan, 1, lambda: f", {product.rows_there} of {problem.n} rows are on the disk") as progress:
        outcome = carried_out(product, progress, meter.reading)
    wall.enter("end")
    energy = meter.total(outcome.repeats)
    with session.team.phase("report", timed=False):
        speaker.end(outcome, {"warmup": 0}, settings, energy)
    return 0 if outcome.check is None or outcome.check.ok else 3


def _refuse_unwritable(options: argparse.Namespace) -> None:
    """All but C's file, whose size is not known yet."""
    from hybrid.host.files import refuse_same, refuse_unwritable
    from hybrid.host.matrix_file import matrix_name

    written = {"--trace": options.trace, "--json": None if options.json == "-" else options.json}
    matrices = {"--out": options.out, "--a": options.a, "--b": options.b}
    files = {option: name and matrix_name(name).file for option, name in matrices.items()}
    may_replace = () if options.resume else ("--a", "--b")  # in parts, A and B are still read when C is begun
    refuse_same({"--out": files.pop("--out"), **written, **files}, may_replace={"--out": may_replace})
    for path in filter(None, written.values()):
        refuse_unwritable(path)


def _explain(options: argparse.Namespace, settings: Settings) -> None:
    from hybrid.commands.explain import explain
    from hybrid.execution.calls import exactly
    from hybrid.selection.decision import ProductRequest
    from hybrid.selection.machine import assumed_machine

    product = product_asked_for(options)
    problem, settings = product.problem, exactly(settings, product.types)
    launch = launched()
    ranks = options.ranks or (launch.size if launch else 1)
    if options.nodes:
        settings = replace(settings, ranks_per_node=-(-ranks // options.nodes))
    machine = assumed_machine(settings, ranks, options.gpus_per_node, options.capability)
    if options.resume:
        from hybrid.commands.matmul_resume import part_to_explain

        problem, line = part_to_explain(machine, problem, options, settings)
        print(line)
    if line := how_computed(product):
        print(f"{product}, {line.strip()}:")
    besides = tuple(product.bytes_beside if rank == 0 else 0 for rank in range(ranks))
    measured = machine.model.network_bytes_per_second if settings.machine else 0.0
    explain(machine, ProductRequest(problem, besides=besides), settings, options.network or measured)


def _list_kernels() -> None:
    width = max(len(kernel.name) for kernel in CATALOGUE)
    of_types = max(len(" ".join(kernel.dtypes)) for kernel in CATALOGUE)
    for kernel in CATALOGUE:
        print(f"{kernel.name:<{width}}  {kernel.device:<4}  {' '.join(kernel.dtypes):<{of_types}}  {kernel.summary}")


def answer(options: argparse.Namespace, settings: Settings) -> bool:
    """What needs no job: the list of kernels, the plan explained. Every rank comes to the same, rank 0 shows it."""
    if options.kernel != "list" and not options.explain:
        return False
    with nullcontext() if rank_by_launcher() == 0 else redirect_stdout(io.StringIO()):
        if options.kernel == "list":
            _list_kernels()
        else:
            _explain(options, settings)
    return True


def main() -> int:
    """The command's entry: exit code for the launcher."""
    return run(NAME, parse, answer, work, meanwhile=wake_gpus)
