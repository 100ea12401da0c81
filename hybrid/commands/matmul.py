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
from hybrid.commands.matmul_options import parse
from hybrid.commands.matmul_report import Speaker
from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.core.wall import wall
from hybrid.errors import UsageError
from hybrid.kernels.catalogue import CATALOGUE
from hybrid.ranks.launcher import launched, rank_by_launcher
from hybrid.ranks.team import Team
from hybrid.selection.inventory import wake_gpus

if TYPE_CHECKING:
    from hybrid.arrays.sources import FileMatrix, MatrixSource
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
    from hybrid.execution.energy_meter import EnergyMeter
    from hybrid.execution.outcome import RunOptions
    from hybrid.execution.product import run_product
    from hybrid.execution.product_file import product_output, write_product
    from hybrid.selection.agreement import agree
    from hybrid.selection.decision import ProductRequest
    from hybrid.selection.inventory import take_inventory
    from hybrid.selection.session import session_of

    gc.enable()
    wall.enter("agree")
    session = session_of(team)
    with team.phase("agree", timed=False) as looking:
        _refuse_unwritable(options)
        problem, a, b = _operands(options, len(team.node_ranks))
        output = product_output(team, problem, options.out) if options.out and not options.resume else None
        looking.mine = take_inventory(session, settings)
    speaker = Speaker(team, options)
    if options.resume:
        return _resume(session, options, settings, (problem, a, b), looking.all, speaker)
    decision = agree(session, ProductRequest(problem), settings, looking.all)
    meter = EnergyMeter(team, decision.placements)
    speaker.begin(decision)
    team.timeline = Timeline(traced=bool(options.trace))
    warmup = options.warmup if options.warmup is not None else int(decision.plan.device == "cuda")
    with speaker.progress(decision.plan, warmup + options.repeat) as progress:
        how = RunOptions(options.repeat, warmup, progress=progress, measuring=meter.reading)
        outcome = run_product(session, decision, a, b, settings, how)
        good = outcome.check is None or outcome.check.ok
        wall.enter("write")
        if output and good:  # a product that failed its check is not worth a file
            write_product(team, decision.plan, outcome.c.array, output)
    wall.enter("end")
    energy = meter.total(outcome.repeats)
    with team.phase("report", timed=False):
        speaker.end(outcome, a, b, {"warmup": warmup}, settings, energy)
    if not good:
        return 3
    return 0 if outcome.repeats == options.repeat else 128 + signal.SIGTERM


def _resume(
    session: Session,
    options: argparse.Namespace,
    settings: Settings,
    operands: tuple[Problem, MatrixSource, MatrixSource],
    inventories: Sequence[Inventory],
    speaker: Speaker,
) -> int:
    """C part by part, after those that an earlier job has written."""
    from hybrid.commands.matmul_resume import carried_out, prepared
    from hybrid.execution.energy_meter import EnergyMeter
    from hybrid.reporting.run_report import parts_line

    problem, a, b = operands
    product = prepared(session, options, settings, operands, inventories)
    there, meter = product.rows_there, EnergyMeter(session.team, product.decision.placements)
    speaker.begin(product.decision, parts_line(product.rows, problem.n, there, f"the checksums of {product.name}"))
    plan = replace(product.decision.plan, problem=replace(problem, n=problem.n - there))
    with speaker.progress(plan, 1, lambda: f", {product.rows_there} of {problem.n} rows are on the disk") as progress:
        outcome = carried_out(product, progress, meter.reading)
    wall.enter("end")
    energy = meter.total(outcome.repeats)
    with session.team.phase("report", timed=False):
        speaker.end(outcome, a, b, {"warmup": 0}, settings, energy)
    return 0 if outcome.check is None or outcome.check.ok else 3


def _operands(options: argparse.Namespace, ranks_of_node: int = 1) -> tuple[Problem, MatrixSource, MatrixSource]:
    from hybrid.arrays.interop import common_dtype
    from hybrid.arrays.sources import FileMatrix, GeneratedMatrix

    files: dict[str, FileMatrix] = {}
    for key, path in (("A", options.a), ("B", options.b)):
        if path:
            files[key] = FileMatrix(path, ranks_of_node)
    n, l, m = options.sizes or (*files["A"].shape, files["B"].shape[1])
    shapes = {"A": (n, l), "B": (l, m)}
    for key, file in files.items():
        if file.shape != shapes[key]:
            raise UsageError(
                f"{file.path} is {file.shape[0]}×{file.shape[1]}, but {key} must be {shapes[key][0]}×{shapes[key][1]}"
            )
    dtype = options.dtype
    if dtype is None:
        types = [file.dtype for file in files.values()]
        dtype = common_dtype(types[0], types[-1]) if types else "float64"
    operands: dict[str, MatrixSource] = {
        key: files.get(key) or GeneratedMatrix(shapes[key], options.fill, options.seed, key) for key in ("A", "B")
    }
    return Problem(n, l, m, dtype), operands["A"], operands["B"]


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
    from hybrid.selection.decision import ProductRequest
    from hybrid.selection.machine import assumed_machine

    problem, _, _ = _operands(options)
    launch = launched()
    ranks = options.ranks or (launch.size if launch else 1)
    if options.nodes:
        settings = replace(settings, ranks_per_node=-(-ranks // options.nodes))
    machine = assumed_machine(settings, ranks, options.gpus_per_node, options.capability)
    if options.resume:
        from hybrid.commands.matmul_resume import part_to_explain

        problem, line = part_to_explain(machine, problem, options, settings)
        print(line)
    explain(machine, ProductRequest(problem), settings, options.network)


def _list_kernels() -> None:
    width = max(len(kernel.name) for kernel in CATALOGUE)
    for kernel in CATALOGUE:
        print(f"{kernel.name:<{width}}  {kernel.device:<4}  {' '.join(kernel.dtypes):<15}  {kernel.summary}")


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
