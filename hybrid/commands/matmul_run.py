# SPDX-License-Identifier: MIT
"""The product of python -m hybrid.matmul, computed by all ranks.

This module loads NumPy, so import it only after the number of threads is set.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from hybrid.commands.matmul import how_computed, product_asked_for
from hybrid.commands.streams import file_of_json, text_stream
from hybrid.core.problem import Span
from hybrid.core.settings import Settings
from hybrid.core.timeline import Timeline, wall
from hybrid.errors import UsageError, with_code
from hybrid.execution.real_products import exactly
from hybrid.execution.session import agree, session_of, take_inventory, threads_until_decided
from hybrid.host.files import discard, publish, refuse_same, refuse_unwritable, temporary_name, written_to
from hybrid.planning.decision import Decision, Inventory
from hybrid.planning.plan import Plan
from hybrid.planning.tiling import PlanRequest
from hybrid.ranks.shared_memory import give_back
from hybrid.ranks.team import Team
from hybrid.reporting import run_report
from hybrid.reporting.progress import Progress
from hybrid.runs.matrix_file import MatrixOutput, matrix_name, new_matrix
from hybrid.runs.measured import Outcome, run_typed_product
from hybrid.runs.operands import Elements, FileElements

_CHECK_FAILED = 3  # exit code


class Job:
    """The product that all ranks have agreed to compute. Rank 0 prints."""

    def __init__(self, team: Team, options: argparse.Namespace, settings: Settings) -> None:
        self.team, self.session, self.options, self.stream = team, session_of(team), options, text_stream(options.json)
        self.output: MatrixOutput | None = None
        with team.phase("agree", timed=False) as looking:
            _refuse_unwritable(options)
            product = product_asked_for(options, len(team.node_ranks), load=True)
            if options.out and not options.resume:
                self.output = new_matrix(options.out, (product.sizes[0], product.sizes[2]), product.result)
                self.output.refuse(self.output.size if team.rank == 0 else 0)  # only rank 0 checks the free space
            looking.mine = take_inventory(self.session, settings)
        self.inventories: list[Inventory] = looking.all
        self.product = product.with_actual_bounds(team, threads_until_decided(team, settings))
        self.settings = exactly(settings, self.product.types)

    def multiply(self) -> int:
        """Multiply as often as asked for, and write C; returns the exit code."""
        team, options, product = self.team, self.options, self.product
        request = PlanRequest(product.problem, besides=(product.bytes_beside, *[0] * (team.size - 1)))
        decision = agree(self.session, request, self.settings, self.inventories)
        self._say_begin(decision)
        team.timeline = Timeline(traced=bool(options.trace))
        warmup = options.warmup if options.warmup is not None else int(decision.plan.device == "cuda")
        with self._progress([decision.plan], (warmup + options.repeat) * len(product.types.primes)) as progress:
            often = {"repeat": options.repeat, "warmup": warmup}
            outcome = run_typed_product(self.session, decision, product, self.settings, progress=progress, **often)
            wall.enter("write")
            if self.output and outcome.is_right:  # a product that failed its check is not written
                _write(team, decision.plan, outcome.c.array, self.output)
        self._report(outcome, warmup)
        if not outcome.is_right:
            return _CHECK_FAILED
        return 0 if outcome.repeats == options.repeat else 128 + signal.SIGTERM

    def resume(self) -> int:
        """Compute the parts of C that no earlier job has written; returns the exit code."""
        from hybrid.commands.matmul_resume import PartsFile, ProductInParts

        product, options = self.product, self.options
        if product.types.converts:
            raise UsageError(f"--resume writes float32, float64 or complex numbers, not {product.types.result}", code="dtype")
        output = new_matrix(options.out, (product.sizes[0], product.sizes[2]), product.result)
        with closing(PartsFile(self.team, output, threads_until_decided(self.team, self.settings))) as disk:
            parts = ProductInParts(self, disk)
            self._say_begin(parts.decision, run_report.parts_line(parts.parts, parts.shape, f"the checksums of {disk.name}"))
            with self._progress([parts.plan] * (parts.parts.count - parts.parts.there), 1, parts.note) as progress:
                outcome = parts.run(progress)
        self._report(outcome, warmup=0)
        return 0 if outcome.is_right else _CHECK_FAILED

    def _say_begin(self, decision: Decision, more: str = "") -> None:
        """Print what will be computed, and how. `more`: one more line."""
        if self.team.rank == 0:
            product = self.product
            heading = run_report.heading(decision, product.sizes, product.types.result)
            lines = heading, how_computed(product, decision.plan.problem), more
            print(*filter(None, lines), sep="\n", file=self.stream, flush=True)

    def _progress(self, plans: run_report.Plans, products: int, note: Callable[[], str] = lambda: "") -> Progress:
        """A context that shows progress. `products`: how often all plans are carried out; `note`: gives more text to show."""
        rate = partial(run_report.rate, plans)
        return Progress(self.team.rank == 0, repeats=products, rate=rate, part=lambda: wall.part, note=note)

    def _report(self, outcome: Outcome, warmup: int) -> None:
        """Print the results, and write the files that the options name."""
        wall.enter("end")
        with self.team.phase("report", timed=False):
            if self.team.rank == 0:
                self._say_end(outcome, warmup)
        give_back()

    def _say_end(self, outcome: Outcome, warmup: int) -> None:
        options, product, check, plans = self.options, self.product, outcome.check, run_report.plans_of(outcome)
        say = partial(print, file=self.stream)
        if options.printed:
            self._print_corners(outcome)
        if outcome.repeats < options.repeat:
            print(f"hybrid: asked to end: {outcome.repeats} of {options.repeat} products [terminated]", file=sys.stderr)
        say(run_report.table(plans, outcome.phases, outcome.total, outcome.parts.spared if outcome.parts else 0))
        if outcome.arithmetic:
            say(run_report.arithmetic_line(outcome.arithmetic))
        if options.json:
            from hybrid.reporting import jsonl

            more = dict(zip("nlm", product.sizes, strict=True)) | {"dtype": product.types.result}
            more |= {
                "operands": outcome.decision.plan.problem.operand_dtype,
                "computed": product.types.computed,
                "products": len(product.types.primes),
            }
            more |= {name: getattr(options, name) for name in ("fill", "seed", "a", "b")}
            more |= {"repeat": outcome.repeats, "warmup": warmup}
            jsonl.write(run_report.as_record(outcome, more, self.settings.as_dict(), wall.parts()), options.json)
        if options.trace:
            names = [f"rank {placement.rank} on {placement.host}" for placement in outcome.decision.placements]
            run_report.write_trace(options.trace, outcome.intervals, names)
        say(run_report.wall_line(wall.parts()))
        for line in check.repaired if check else ():
            say(f"repaired: {line}")
        for fault in check.faults[:3] if check else ():  # --json writes all
            say(f"wrong: {with_code(fault, fault.code)}")
        say(run_report.last_line(plans, outcome.total, check), flush=True)

    def _print_corners(self, outcome: Outcome) -> None:
        """Print the top left of A and B, read or generated again since the rows may be on another node, and of C."""
        count, product = self.options.printed, self.product
        shown: dict[str, Elements] = {"A": product.a, "B": product.b}
        if outcome.parts and outcome.is_right:
            shown["C"] = c = FileElements(self.options.out)  # memory holds only some rows
            c.convert_to(product.result)
        for label, matrix in shown.items():
            corner = matrix.some(Span(0, min(count, matrix.shape[0])))[:, :count]
            self.stream.write(run_report.labelled_corner(label, corner, matrix.shape))
        if not outcome.parts and (outcome.is_right or product.is_plain):
            corner, shape = outcome.c.array[:count, :count], (product.sizes[0], product.sizes[2])
            self.stream.write(run_report.labelled_corner("C", corner, shape))


def _refuse_unwritable(options: argparse.Namespace) -> None:
    """UsageError for files that cannot be written, except C's, whose size is not known yet."""
    written = {"--trace": options.trace, "--json": file_of_json(options.json)}
    matrices = {"--out": options.out, "--a": options.a, "--b": options.b}
    files = {option: name and matrix_name(name).file for option, name in matrices.items()}
    may_replace = () if options.resume else ("--a", "--b")  # --resume still reads A and B when it begins C
    refuse_same({"--out": files.pop("--out"), **written, **files}, may_replace={"--out": may_replace})
    for path in filter(None, written.values()):
        refuse_unwritable(path)


def _write(team: Team, plan: Plan, c: np.ndarray, output: MatrixOutput) -> None:
    """Write C. Every rank calls it; `c` is the gathered C on the root's node."""
    path = output.path
    with team.phase("write", timed=False) as naming:
        naming.mine = temporary_name(path) if team.rank == plan.root else None
    beside: Path = naming.all[plan.root]
    try:
        with team.phase("write", timed=False) as beginning, written_to(path, beside, output.size):
            beginning.mine = output.begin(beside) if team.rank == plan.root else 0
        with team.phase("write", timed=False), written_to(path, beside, output.size):
            if team.node == plan.root_node:
                rows = plan.c_rows_at_the_end(team.rank)
                output.write(beside, beginning.all[plan.root], rows, c[rows.slice], lambda: team.enter("write"))
        with team.phase("write", timed=False), written_to(path, beside, output.size):
            if team.rank == plan.root:
                publish(beside, path)
    except BaseException:
        if team.rank == plan.root:
            discard(beside)
        raise
