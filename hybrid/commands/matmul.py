# SPDX-License-Identifier: MIT
"""The command: python -m hybrid.matmul n l m. C (n×m) = A (n×l) · B (l×m) by all ranks of the job."""

from __future__ import annotations

import argparse
import gc
import io
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hybrid.commands.cli import run
from hybrid.commands.matmul_options import parse
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
    from hybrid.execution.outcome import Outcome
    from hybrid.plan.plan import Plan
    from hybrid.selection.decision import Decision

NAME = "hybrid.matmul"
_MOST_FAULTS = 3  # of a wrong product that are printed; --json writes all


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
        output = product_output(team, problem, options.out) if options.out else None
        looking.mine = take_inventory(session, settings)
    decision = agree(session, ProductRequest(problem), settings, looking.all)
    speaker = _Speaker(team, options)
    speaker.begin(decision)
    team.timeline = Timeline(traced=bool(options.trace))
    warmup = options.warmup if options.warmup is not None else int(decision.plan.device == "cuda")
    with speaker.progress(decision.plan, warmup + options.repeat) as progress:
        how = RunOptions(options.repeat, warmup, progress=progress)
        outcome = run_product(session, decision, a, b, settings, how)
        good = outcome.check is None or outcome.check.ok
        wall.enter("write")
        if output and good:  # a product that failed its check is not worth a file
            write_product(team, decision.plan, outcome.c.array, output)
    wall.enter("end")
    with team.phase("report", timed=False):
        speaker.end(outcome, a, b, {"warmup": warmup}, settings)
    if not good:
        return 3
    return 0 if outcome.repeats == options.repeat else 128 + signal.SIGTERM


class _Speaker:
    """Rank 0's word to the user; silent elsewhere."""

    def __init__(self, team: Team, options: argparse.Namespace) -> None:
        self._silent = team.rank != 0
        self._options = options
        self._stream = sys.stderr if options.json == "-" else sys.stdout

    def begin(self, decision: Decision) -> None:
        from hybrid.reporting.run_report import heading

        if not self._silent:
            print(heading(decision), file=self._stream, flush=True)

    def progress(self, plan: Plan, products: int) -> AbstractContextManager[Callable[[str, int, int], None]]:
        """Within this context it is shown how far the products are."""
        if self._silent:
            return nullcontext(lambda *told: None)
        from hybrid.reporting.progress import Progress
        from hybrid.reporting.run_report import rate

        return Progress(repeats=products, rate=partial(rate, plan), part=lambda: wall.part)

    def end(self, outcome: Outcome, a: MatrixSource, b: MatrixSource, extra: dict[str, Any], settings: Settings) -> None:
        if self._silent:
            return
        from hybrid.reporting.run_report import arithmetic_line, as_record, last_line, table, wall_line

        options, plan = self._options, outcome.decision.plan
        if options.printed:
            self._print_corners(outcome, a, b)
        if outcome.repeats < options.repeat:
            print(f"hybrid: asked to end: {outcome.repeats} of {options.repeat} products were finished", file=sys.stderr)
        print(table(plan, outcome.phases, outcome.total), file=self._stream)
        if outcome.arithmetic:
            print(arithmetic_line(outcome.arithmetic), file=self._stream)
        if options.json:
            from hybrid.reporting import jsonl

            asked = {name: getattr(options, name) for name in ("fill", "seed", "a", "b")} | {"repeat": outcome.repeats}
            record = as_record(outcome, {**asked, **extra}, settings.as_dict(), wall.parts())
            jsonl.write(record, options.json)
        if options.trace:
            from hybrid.reporting.chrome_trace import write_trace

            names = [f"rank {placement.rank} on {placement.host}" for placement in outcome.decision.placements]
            write_trace(options.trace, outcome.intervals, names)
        print(wall_line(wall.parts()), file=self._stream)
        for line in outcome.check.repaired if outcome.check else ():
            print(f"repaired: {line}", file=self._stream)
        for fault in outcome.check.faults[:_MOST_FAULTS] if outcome.check else ():
            print(f"wrong: {fault}", file=self._stream)
        print(last_line(plan, outcome.total, outcome.check), file=self._stream, flush=True)

    def _print_corners(self, outcome: Outcome, a: MatrixSource, b: MatrixSource) -> None:
        import numpy as np

        from hybrid.core.spans import Span
        from hybrid.reporting.run_report import labelled_corner

        count, problem = self._options.printed, outcome.decision.plan.problem
        for label, operand in (("A", a), ("B", b)):  # made again: on several nodes the rows may lie elsewhere
            rows = Span(0, min(count, operand.shape[0]))
            corner = np.empty((len(rows), operand.shape[1]), problem.dtype)
            operand.rows(rows, corner, 1, lambda done: None)
            self._stream.write(labelled_corner(label, corner[:, :count], operand.shape))
        self._stream.write(labelled_corner("C", outcome.c.array[:count, :count], (problem.n, problem.m)))


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
    refuse_same({"--out": files.pop("--out"), **written, **files}, may_replace={"--out": ("--a", "--b")})
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
