# SPDX-License-Identifier: MIT
"""One rank's part of a product on a grid of nodes: rectangles of A and B arrive and are multiplied, and C goes where it is
kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from hybrid.core.settings import Settings
from hybrid.devices.base import Timings
from hybrid.errors import CheckFailed
from hybrid.execution.grid_exchange import GridExchange, GridMatrices
from hybrid.execution.grid_on_device import GridOnDevice
from hybrid.execution.progress import Progress
from hybrid.execution.rank_check import SumElsewhere
from hybrid.execution.worker import Worker
from hybrid.host.page_memory import empty_matrix
from hybrid.host.threads import limited_threads
from hybrid.plan.arithmetic import Computed
from hybrid.plan.rectangles import Rectangle
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.verification.alone import verify_alone
from hybrid.verification.check import Check, Suspect, WrongCopy
from hybrid.verification.exchanged import verify_exchange
from hybrid.verification.expected_sums import ExpectedSums
from hybrid.verification.wrong_parts import WrongParts


class GridRun:
    """The multiplication, set up as far as can be done before the clock runs. Every rank makes one. It is used as a `RankRun`
    is.

    `kept`: what this rank has of A, B and C in host memory, by operand.
    """

    def __init__(
        self, session: Session, decision: Decision, kept: Mapping[str, np.ndarray], settings: Settings, progress: Progress
    ) -> None:
        layout = decision.plan.grid_layout
        assert layout is not None
        self._layout, self._team, self._progress = layout, session.team, progress
        self._decision = decision
        gpus = [placement.gpu for placement in decision.placements]
        self._rank_device = session.device(decision.plan, gpus, decision.kernel)
        self._place_of_b = layout.grid.of_b(self._team.node, layout.problem)
        self._matrices = self._made(dict(kept))
        self._rank_device.meet(self._team, layout.pieces["B"])
        assert self._rank_device.flags is not None
        self._exchange = GridExchange(self._team, layout, self._matrices, self._rank_device.flags)
        self._on_device = None
        if decision.plan.parts:
            self._on_device = GridOnDevice(session, decision, self._matrices, self._exchange, settings, progress)
        self._work: Timings = ()

    def _made(self, kept: dict[str, np.ndarray]) -> GridMatrices:
        """The matrices that this rank multiplies and computes: those of `kept` where they can be used as they lie, else new
        ones."""
        layout, team = self._layout, self._team
        dtype, place = layout.problem.dtype, self._place_of_b
        b = make_shared_matrices(team, {"B": place.rows}, {"B": len(place.columns)}, {"B": dtype})["B"].array
        with team.phase("prepare", timed=False), busy():
            a = kept["A"] if layout.rows_stay else empty_matrix(*layout.rows_of_a(team.rank).shape, dtype)
            c = kept["C"] if layout.computes_in_place else empty_matrix(*layout.part_of_c(team.rank).shape, dtype)
            height, width = kept["C"].shape
            layers = layout.grid.layers
            terms = None if layers == 1 else empty_matrix(height * layers, width, dtype).reshape(layers, height, width)
        return GridMatrices(kept, a, b, c, terms)

    def make_ready(self) -> None:
        """Make this rank ready for a product, in a phase that all ranks leave together before they multiply."""
        self._exchange.begin()
        if self._on_device is not None:
            self._on_device.make_ready()

    def multiply(self) -> None:
        """Multiply this rank's part. Every rank calls it."""
        with self._team.phase("multiply", timed=False), busy(self._rank_device.device.progress):
            try:
                self._work = self._on_device.multiply() if self._on_device is not None else self._multiply_in_place()
            except BaseException:
                self._rank_device.drain()
                raise

    def gather(self) -> None:
        """Send what is left of C, when all is multiplied, to where it is kept. Every rank calls it."""
        with self._team.phase("gather"):
            self._exchange.finish()

    def abandon(self) -> None:
        """Do nothing: the product has failed, on this rank or another, and no thread of a check reads the matrices."""

    def check(self, elsewhere: SumElsewhere | None = None) -> Check:
        raise AssertionError("a product on a grid is checked on the host")

    def suspects(self, check: Check | None) -> tuple[Suspect, ...]:
        """Nothing: the host judges all of C."""
        return ()

    def needs_host(self, check: Check | None, wrong: WrongParts | None) -> bool:
        """True: no device checks a product on a grid."""
        return True

    def wrong_copies(self) -> list[tuple[WrongCopy, np.ndarray]]:
        return []

    def expected_sums(self, wrong: WrongParts) -> list[ExpectedSums]:
        return []

    def check_parts(self, threads: int) -> Check:
        """The check of what each rank has computed, and of what was sent, where no rank has whole rows. Every rank calls it."""
        matrices = self._matrices
        for operand, sent, received in self._exchange.exchanged:
            verify_exchange(self._team, operand, sent, received, threads)
        with self._team.phase("check") as checking, busy(), limited_threads(1):
            checking.mine = verify_alone(matrices.a, matrices.b, matrices.c, threads)
        if matrices.terms is not None:
            with self._team.phase("check"):
                if not np.array_equal(np.sum(matrices.terms, axis=0), matrices.kept["C"], equal_nan=True):
                    raise CheckFailed("the layers' results were added up wrong", code="check-exchange")
        wrong = [rank for rank, check in enumerate(checking.all) if not check.ok]
        worst = max(checking.all, key=lambda check: (not check.ok, check.kind, check.error))  # exact before freivalds
        return replace(worst, faults=tuple(fault for rank in wrong for fault in self._named(rank, checking.all[rank]).faults))

    def _named(self, rank: int, check: Check) -> Check:
        """The check of one rank's part, which counts its own rows and columns, with the names of that rank and part."""
        part = self._layout.part_of_c(rank)
        named = check.of(
            f"{self._decision.device_of(rank)}, rows {part.rows}, columns {part.columns}, counted from there", part.rows.lo
        )
        return replace(named, faults=tuple(replace(fault, rank=rank) for fault in named.faults))

    def note_work(self) -> None:
        """Note, after the clock has stopped, when each multiplication of the product ran."""
        for phase, begin, end in self._work:
            self._team.timeline.add(phase, begin, end)
        self._work = ()

    def _multiply_in_place(self) -> Timings:
        team, exchange, panels = self._team, self._exchange, self._layout.pieces["B"]
        with Worker(beside=True) as worker:
            for number in range(panels):
                exchange.wait_for_panel(number, worker.computes)
                team.enter("multiply")
                self._progress("multiply", number, panels)
                worker.do(partial(self._multiply, number))
            worker.wait(exchange.send_computed)
        exchange.send_computed()
        return self._rank_device.device.finish()

    @property
    def arithmetic(self) -> Computed:
        """The arithmetic of this rank's part of C in the last product; empty where all of it is native."""
        return self._on_device.arithmetic if self._on_device is not None else {}

    def _multiply(self, number: int) -> None:
        """Multiply one panel, in the worker's thread."""
        matrices, place = self._matrices, Rectangle(self._place_of_b.rows, self._layout.panel(self._team.rank, number))
        columns = place.within(self._place_of_b)[1]
        self._rank_device.device.multiply(matrices.a, matrices.b[:, columns], matrices.c[:, columns], after=[])
        self._exchange.computed = number + 1
