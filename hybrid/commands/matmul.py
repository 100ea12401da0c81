# SPDX-License-Identifier: MIT
"""The command: python -m hybrid.matmul n l m. C (n×m) = A (n×l) · B (l×m) by all ranks of the job."""

from __future__ import annotations

import argparse
import io
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace

from hybrid.commands.cli import agree_on_options, run
from hybrid.commands.matmul_operands import product_asked_for
from hybrid.commands.matmul_options import parse
from hybrid.commands.matmul_report import how_computed
from hybrid.core.settings import Settings
from hybrid.core.timeline import wall
from hybrid.kernels.catalogue import CATALOGUE
from hybrid.ranks.launcher import launched, rank_by_launcher
from hybrid.ranks.team import Team

NAME = "hybrid.matmul"


def work(team: Team, options: argparse.Namespace, settings: Settings) -> int:
    """One rank's part of the command."""
    from hybrid.selection.decision import settle_threads, wake_gpus

    wall.enter("agree")
    agree_on_options(team, options, settings)
    team.pretend_nodes(settings.ranks_per_node)
    settle_threads(team, settings)
    wake_gpus(settings)
    wall.enter("imports")
    # From here on NumPy may be loaded: it finds the number of threads in the environment.
    from hybrid.commands.matmul_run import carry_out

    return carry_out(team, options, settings)


def _explain(options: argparse.Namespace, settings: Settings) -> None:
    """Show what would be decided on the machine that the options describe."""
    from hybrid.commands.explain import assumed_machine, explain
    from hybrid.execution.real_products import exactly
    from hybrid.planning.tiling import PlanRequest

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
    explain(machine, PlanRequest(problem, besides=besides), settings, options.network or measured)


def _list_kernels() -> None:
    width = max(len(kernel.name) for kernel in CATALOGUE)
    of_types = max(len(" ".join(kernel.dtypes)) for kernel in CATALOGUE)
    for kernel in CATALOGUE:
        print(f"{kernel.name:<{width}}  {kernel.device:<4}  {' '.join(kernel.dtypes):<{of_types}}  {kernel.summary}")


def answer(options: argparse.Namespace, settings: Settings) -> bool:
    """Show the list of kernels, or explain the plan, on rank 0. Returns whether that was asked for, on every rank the same."""
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
    return run(NAME, parse, work, answer=answer)
