# SPDX-License-Identifier: MIT
"""One rank's part of a product on a grid of nodes: rectangles of A and B arrive, are multiplied, and C goes where it is kept."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hybrid.devices.base import Timings
from hybrid.errors import CheckFailed
from hybrid.execution.host_matrices import Progress
from hybrid.execution.rank_check import SumElsewhere
from hybrid.execution.worker import Worker
from hybrid.host.page_memory import empty_matrix
from hybrid.host.threads import limited_threads
from hybrid.plan.arithmetic import Computed
from hybrid.plan.grid_layout import Place
from hybrid.plan.rectangles import Rectangle
from hybrid.ranks.collectives import Series, Start, exchange
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.node_flags import NodeFlags
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.verification.alone import verify_alone
from hybrid.verification.check import Check, Suspect, WrongCopy
from hybrid.verification.exchanged import verify_exchange
from hybrid.verification.wrong_parts import WrongParts

_IN, _OUT = "to the grid", "from the grid"  # the two series of collectives
_AHEAD = 2  # collectives that are started before they are needed: their messages fill the network while others end


Pieces = dict[int, list[np.ndarray]]  # by the rank to which they go, or from which they come


class GridRun:
    """The multiplication, set up as far as can be done before the clock runs. Every rank makes one; as `RankRun`.

    `kept`: what this rank has of A, B and C, by operand.
    """

    def __init__(self, session: Session, decision: Decision, kept: Mapping[str, np.ndarray], progress: Progress) -> None:
        layout = decision.plan.grid_layout
        assert layout is not None
        self._layout, self._team, self._kept, self._progress = layout, session.team, kept, progress
        self._decision = decision
        gpus = [placement.gpu for placement in decision.placements]
        self._rank_device = session.device(decision.plan, gpus, decision.kernel)
        team, rank, dtype = self._team, self._team.rank, layout.problem.dtype
        needed_of_b = layout.grid.of_b(team.node, layout.problem)
        self._b = make_shared_matrices(team, {"B": needed_of_b.rows}, {"B": len(needed_of_b.columns)}, {"B": dtype})["B"].array
        self._place_of_b = needed_of_b
        with team.phase("prepare", timed=False), busy():
            self._a = kept["A"] if layout.rows_stay else empty_matrix(*layout.rows_of_a(rank).shape, dtype)
            in_place = layout.computes_in_place
            self._c = kept["C"] if in_place else empty_matrix(*layout.part_of_c(rank).shape, dtype)
            height, width = kept["C"].shape
            layers = layout.grid.layers
            self._terms = None if layers == 1 else empty_matrix(height * layers, width, dtype).reshape(layers, height, width)
        self._rank_device.meet(team, layout.pieces["B"])
        self._exchanged: list[tuple[str, Pieces, Pieces]] = []
        self._transfers = {
            series: [self._transfer(operand, number) for operand in operands for number in range(layout.pieces[operand])]
            for series, operands in ((_IN, "AB"), (_OUT, "C"))
        }
        self._series: dict[str, Series] = {}
        self._connect()
        self._computed = self._sent = 0  # panels of C
        self._work: Timings = ()

    def make_ready(self) -> None:
        """Before each product, in a phase that all ranks leave together before they multiply."""
        self._computed = self._sent = 0
        assert self._rank_device.flags is not None
        self._rank_device.flags.new_round()
        for name, transfers in self._transfers.items():
            series = self._team.messages.collectives.series(name, range(self._team.size), transfers)
            assert series is not None
            self._series[name] = series

    def _connect(self) -> None:
        collectives, ranks = self._team.messages.collectives, range(self._team.size)
        for series in (_IN, _OUT):
            if not collectives.is_connected(series, ranks):
                with self._team.phase("prepare", timed=False):
                    pass  # a rank that fails before keeps no other one waiting inside MPI
                collectives.connect(series, ranks)

    def multiply(self) -> None:
        """Every rank calls it."""
        with self._team.phase("multiply", timed=False), busy():
            try:
                self._multiply_panels()
            except BaseException:
                self._rank_device.drain()
                raise
            self._work = self._rank_device.device.finish()

    def gather(self) -> None:
        """C to where it is kept, what is left of it when all is multiplied. Every rank calls it."""
        with self._team.phase("gather"):
            self._series[_OUT].wait_until_complete()
            if self._terms is not None:
                np.sum(self._terms, axis=0, out=self._kept["C"])

    def abandon(self) -> None:
        """The product has failed, on this rank or another."""

    def check(self, elsewhere: SumElsewhere | None = None) -> Check:
        raise AssertionError("a product on a grid is checked on the host")

    def suspects(self, check: Check | None) -> tuple[Suspect, ...]:
        """The host has judged all."""
        return ()

    def needs_host(self, check: Check | None, wrong: WrongParts | None) -> bool:
        """As a `RankRun`: no device checks."""
        return True

    def wrong_copies(self) -> list[tuple[WrongCopy, np.ndarray]]:
        return []

    def check_parts(self, threads: int) -> Check:
        """Of what each rank has computed, and of what was sent, where no rank has whole rows. Every rank calls it."""
        for operand, sent, received in self._exchanged:
            verify_exchange(self._team, operand, sent, received, threads)
        with self._team.phase("check") as checking, busy(), limited_threads(1):
            checking.mine = verify_alone(self._a, self._b, self._c, threads)
        if self._terms is not None:
            with self._team.phase("check"):
                if not np.array_equal(np.sum(self._terms, axis=0), self._kept["C"], equal_nan=True):
                    raise CheckFailed("the layers' results were added up wrong")
        wrong = [rank for rank, check in enumerate(checking.all) if not check.ok]
        worst = max(checking.all, key=lambda check: (not check.ok, check.kind, check.error))  # exact before freivalds
        return replace(worst, faults=tuple(fault for rank in wrong for fault in self._named(rank, checking.all[rank]).faults))

    def _named(self, rank: int, check: Check) -> Check:
        """Of one rank, which counts the rows and columns of its part."""
        part = self._layout.part_of_c(rank)
        return check.of(f"{self._decision.device_of(rank)}, rows {part.rows}, columns {part.columns}, counted from there")

    def note_work(self) -> None:
        """After the clock has stopped: when each multiplication of the product ran."""
        for phase, begin, end in self._work:
            self._team.timeline.add(phase, begin, end)
        self._work = ()

    def _multiply_panels(self) -> None:
        flags, team, first = self._rank_device.flags, self._team, self._layout.pieces["A"]
        panels = self._layout.pieces["B"]
        assert flags is not None
        with Worker(beside=True) as worker:
            for number in range(panels):
                began = time.perf_counter()
                team.enter("scatter")
                for index in range(first + number + 1) if number == 0 else (first + number,):
                    self._series[_IN].start(index + 1 + _AHEAD)
                    self._series[_IN].wait_for(index, self._send_computed, worker.computes)
                flags.set_flag(number)
                self._wait_for_node(flags, number)
                team.timeline.add("scatter", began, time.perf_counter())
                team.enter("multiply")
                self._progress("multiply", number, panels)
                worker.do(partial(self._multiply, number))
            worker.wait(self._send_computed)
        self._send_computed()

    @property
    def arithmetic(self) -> Computed:
        """CPUs compute natively."""
        return {}

    def _wait_for_node(self, flags: NodeFlags, number: int) -> None:
        """Until all ranks of the node have their part of a panel of B; what other ranks wait for goes on meanwhile."""
        pause, following = flags.pauses(), self._layout.pieces["A"] + number + 1
        while not all(flags.is_set(rank, number) for rank in self._team.node_ranks):
            self._series[_IN].is_complete(following)
            self._send_computed()
            next(pause)

    def _multiply(self, number: int) -> None:
        """One panel, in the worker's thread."""
        place = Rectangle(self._place_of_b.rows, self._layout.panel(self._team.rank, number))
        columns = place.within(self._place_of_b)[1]
        self._rank_device.device.multiply(self._a, self._b[:, columns], self._c[:, columns], after=[])
        self._computed = number + 1

    def _send_computed(self) -> None:
        """Without waiting: start sending the panels of C that are computed, and go on with those that are under way."""
        series = self._series[_OUT]
        series.start(self._computed)
        while self._sent < series.started and series.is_complete(self._sent):
            self._sent += 1

    def _transfer(self, operand: str, number: int) -> Start:
        """Of one piece: what this rank sends to each rank, and receives from each."""
        layout, me, ranks = self._layout, self._team.rank, range(self._team.size)
        sends = {rank: self._sources(operand, layout.sends(operand, number, me, rank)) for rank in ranks}
        receives = {rank: self._destinations(operand, layout.sends(operand, number, rank, me), rank) for rank in ranks}
        self._exchanged.append((operand, sends, receives))
        return exchange(sends, receives, me)

    def _sources(self, operand: str, parts: Sequence[tuple[Rectangle, Place]]) -> list[np.ndarray]:
        if operand == "C":
            computed = self._layout.part_of_c(self._team.rank)
            return [self._c[part.within(computed)] for part, _ in parts]
        return [self._kept[operand][place] for _, place in parts]

    def _destinations(self, operand: str, parts: Sequence[tuple[Rectangle, Place]], source: int) -> list[np.ndarray]:
        if operand == "C":
            into = self._kept["C"] if self._terms is None else self._terms[self._layout.layer_of(source)]
            return [into[place] for _, place in parts]
        into, whole = (self._a, self._layout.rows_of_a(self._team.rank)) if operand == "A" else (self._b, self._place_of_b)
        return [into[part.within(whole)] for part, _ in parts]
