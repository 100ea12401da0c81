# SPDX-License-Identifier: MIT
"""One rank's part of a product on a grid of nodes: rectangles of A and B arrive and are multiplied, and C goes where it is
kept.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.devices.base import Buffers, Event, Timings
from hybrid.errors import CheckFailed
from hybrid.execution.outcome import Progress, TileProgress, Worker
from hybrid.execution.pipeline import run_share
from hybrid.execution.rank_run import SumElsewhere, modular_product
from hybrid.host.memory import RowView, empty_matrix
from hybrid.host.threads import limited_threads
from hybrid.plan.arithmetic import Computed
from hybrid.plan.grid import GridLayout, Place, Rectangle
from hybrid.plan.schedule import RankShare, Tile
from hybrid.ranks.collectives import Series, Start, exchange
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import NodeFlags, make_shared_matrices
from hybrid.ranks.team import Team
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.transport.base import HostTransport, RankMatrices
from hybrid.verification.check import Check, Suspect, WrongCopy
from hybrid.verification.copies import verify_exchange
from hybrid.verification.freivalds import ExpectedSums, verify_alone
from hybrid.verification.second_look import WrongParts

# -------- grid exchange
# What a rank of a grid of nodes sends and receives: A, then the column panels of B one by one, and those of C as they are
# computed.

_IN, _OUT = "to the grid", "from the grid"  # the two series of collectives
_AHEAD = 2  # collectives that are started before they are needed: their messages fill the network while others end

Pieces = dict[int, list[np.ndarray]]  # what goes to each rank, or comes from each


class GridMatrices:
    """The matrices of one rank.

    `kept`: what it has of A and B, and is to have of C, by operand. `a`, `b`, `c`: what it multiplies and computes; its node's
    ranks have `b` in common. `terms`: where there are several layers, what each of them gives to this rank's part of C.
    """

    def __init__(
        self, kept: dict[str, np.ndarray], a: np.ndarray, b: np.ndarray, c: np.ndarray, terms: np.ndarray | None
    ) -> None:
        self.kept, self.a, self.b, self.c, self.terms = kept, a, b, c, terms


class GridExchange:
    """The exchange of one product after the other.

    A rank that waits goes on meanwhile with all that is under way, so no rank waits for another one that multiplies.
    """

    def __init__(self, team: Team, layout: GridLayout, matrices: GridMatrices, flags: NodeFlags) -> None:
        """Every rank calls it. `flags`: one for each column panel of B, which a rank sets when it has received its part of the
        panel for its node."""
        self._team, self._layout, self._matrices, self._flags = team, layout, matrices, flags
        self._place_of_b = layout.grid.of_b(team.node, layout.problem)
        self.exchanged: list[tuple[str, Pieces, Pieces]] = []  # operand, what was sent, what was received
        self._transfers = {
            series: [self._transfer(operand, number) for operand in operands for number in range(layout.pieces[operand])]
            for series, operands in ((_IN, "AB"), (_OUT, "C"))
        }
        self._series: dict[str, Series] = {}
        self._received = self._sent = 0  # collectives that are complete
        self.computed = 0  # panels of C, in their order
        for series in (_IN, _OUT):
            team.connect(series, range(team.size))

    def begin(self) -> None:
        """Begin a product, in a phase that all ranks leave together before they multiply."""
        self._received = self._sent = self.computed = 0
        self._flags.new_round()
        for name, transfers in self._transfers.items():
            series = self._team.messages.collectives.series(name, range(self._team.size), transfers)
            assert series is not None
            self._series[name] = series

    def wait_for_a(self) -> None:
        """Wait until this rank has the rows of A that it multiplies. PhaseEnded if a rank fails meanwhile."""
        self._receive(self._layout.pieces["A"])

    def wait_for_panel(self, number: int, computing: Callable[[], bool] = lambda: False) -> None:
        """Wait until A is there, and this panel of B is on the node. PhaseEnded if a rank fails meanwhile.

        `computing`: whether another thread of this rank needs its core.
        """
        began = time.perf_counter()
        self._team.enter("scatter")
        self._receive(self._layout.pieces["A"] + number + 1, computing)
        pause = self._flags.pauses()
        while not self._is_on_node(number):
            self.advance()
            next(pause)
        self._team.timeline.add("scatter", began, time.perf_counter())

    def has_panel(self, number: int) -> bool:
        """Whether this panel of B is on the node, without waiting."""
        self.advance()
        return self._received > self._layout.pieces["A"] + number and self._is_on_node(number)

    def advance(self) -> None:
        """Note what has arrived, and send the panels of C that are computed, without waiting."""
        series = self._series[_IN]
        while self._received < len(self._transfers[_IN]):
            series.start(self._received + 1 + _AHEAD)
            if not series.is_complete(self._received):
                break
            self._note_received()
        self.send_computed()

    def send_computed(self) -> None:
        """Start sending the panels of C that are computed, and go on with those that are under way, without waiting."""
        series = self._series[_OUT]
        series.start(self.computed)
        while self._sent < series.started and series.is_complete(self._sent):
            self._sent += 1

    def finish(self) -> None:
        """Wait until C is where it is kept, with the layers' results added up. PhaseEnded if a rank fails meanwhile."""
        self._series[_OUT].wait_until_complete()
        matrices = self._matrices
        if matrices.terms is not None:
            np.sum(matrices.terms, axis=0, out=matrices.kept["C"])

    def _receive(self, count: int, computing: Callable[[], bool] = lambda: False) -> None:
        """Wait until the first `count` collectives are complete."""
        series = self._series[_IN]
        while self._received < count:
            series.start(self._received + 1 + _AHEAD)
            series.wait_for(self._received, self.send_computed, computing)
            self._note_received()

    def _note_received(self) -> None:
        panel = self._received - self._layout.pieces["A"]
        self._received += 1
        if panel >= 0:
            self._flags.set_flag(panel)

    def _is_on_node(self, number: int) -> bool:
        """Whether all ranks of the node have received their parts of this panel of B."""
        return all(self._flags.is_set(rank, number) for rank in self._team.node_ranks)

    def _transfer(self, operand: str, number: int) -> Start:
        """The collective that brings piece `number` of an operand: what this rank sends to each rank, and receives from each."""
        layout, me, ranks = self._layout, self._team.rank, range(self._team.size)
        sends = {rank: self._sources(operand, layout.sends(operand, number, me, rank)) for rank in ranks}
        receives = {rank: self._destinations(operand, layout.sends(operand, number, rank, me), rank) for rank in ranks}
        self.exchanged.append((operand, sends, receives))
        return exchange(sends, receives, me)

    def _sources(self, operand: str, parts: Sequence[tuple[Rectangle, Place]]) -> list[np.ndarray]:
        """The arrays that are sent, one for each of these parts."""
        if operand == "C":
            computed = self._layout.part_of_c(self._team.rank)
            return [self._matrices.c[part.within(computed)] for part, _ in parts]
        return [self._matrices.kept[operand][place] for _, place in parts]

    def _destinations(self, operand: str, parts: Sequence[tuple[Rectangle, Place]], source: int) -> list[np.ndarray]:
        """The arrays into which these parts are received from rank `source`."""
        matrices, layout = self._matrices, self._layout
        if operand == "C":
            into = matrices.kept["C"] if matrices.terms is None else matrices.terms[layout.layer_of(source)]
            return [into[place] for _, place in parts]
        whole = layout.rows_of_a(self._team.rank) if operand == "A" else self._place_of_b
        into = matrices.a if operand == "A" else matrices.b
        return [into[part.within(whole)] for part, _ in parts]


# -------- grid panels
# The column panels of a grid as a rank's device sees them: those of B that have arrived, and those of C that are computed.
#
# The device's own panels may be others than those that travel: a panel is there when all that it overlaps with are.


class GridPanels:
    """One rank's view of them. It is told of each tile that is stored. A panel of C is sent when all of its elements are, and
    those of the panels before."""

    def __init__(
        self,
        exchange: GridExchange,
        layout: GridLayout,
        rank: int,
        share: RankShare,
        done: Callable[[Event], bool],
        pauses: Callable[[], Iterator[None]],
    ) -> None:
        """`share`: of the rank's part of the product. `done`: whether an event of the device is complete."""
        self._exchange, self._done, self._pauses = exchange, done, pauses
        columns = layout.part_of_c(rank).columns
        self._travelling = [layout.panel(rank, number).within(columns) for number in range(layout.pieces["B"])]
        self._last_of = [self._overlapped(panel)[-1] for panel in share.column_panels]
        self._rows = len(share.rows)
        self._left: list[int] = []  # elements of each panel of C that are not in host memory
        self._expected: deque[tuple[Tile, Event]] = deque()

    def begin(self) -> None:
        """A product begins: nothing is computed."""
        self._expected.clear()
        self._left = [self._rows * len(panel) for panel in self._travelling]
        self._note_computed()

    def arrived(self, index: int) -> bool:
        return self._exchange.has_panel(self._last_of[index])

    def wait_for(self, index: int) -> None:
        if not self.arrived(index):
            self._exchange.wait_for_panel(self._last_of[index])

    def will_be_stored(self, tile: Tile, event: Event) -> None:
        self._expected.append((tile, event))

    def advance(self) -> None:
        while self._expected and self._done(self._expected[0][1]):
            tile, _ = self._expected.popleft()
            for number in self._overlapped(tile.columns):
                self._left[number] -= len(tile.rows) * len(self._travelling[number].common(tile.columns))
        self._note_computed()
        self._exchange.advance()

    def wait_for_stored(self) -> None:
        pause = self._pauses()
        while self._expected:
            self.advance()
            next(pause)

    def _note_computed(self) -> None:
        """Tell the exchange how many panels of C are computed."""
        computed = self._exchange.computed
        while computed < len(self._left) and not self._left[computed]:
            computed += 1
        self._exchange.computed = computed

    def _overlapped(self, columns: Span) -> list[int]:
        """The numbers of the travelling panels that overlap with these columns."""
        return [number for number, panel in enumerate(self._travelling) if panel.meets(columns)]


# -------- grid on device
# One rank's part of a product on a grid of nodes, on a device with buffers, such as a GPU: panels go there as they arrive.


class GridOnDevice:
    """Every rank makes one. The rank's part is planned as a product of its own, with its own panels."""

    def __init__(
        self,
        session: Session,
        decision: Decision,
        matrices: GridMatrices,
        exchange: GridExchange,
        settings: Settings,
        progress: Progress,
    ) -> None:
        team, plan, layout = session.team, decision.plan, decision.plan.grid_layout
        assert layout is not None
        assert session.rank_device is not None
        self._team, self._exchange, self._settings = team, exchange, settings
        self._layout, self._rank_device = layout, session.rank_device
        began = time.perf_counter()
        self._part = part = plan.parts[team.rank]
        device = self._rank_device.device
        self._share = share = part.shares[0]
        self._rank_device.reserve(team, share.layout.bytes)
        with team.phase("prepare", timed=False), busy():
            self._buffers = self._rank_device.once_for_plan(
                "grid", part, lambda: Buffers(device, self._rank_device.memory, share, part.problem)
            )
            self._modular = modular_product(self._rank_device, decision, part, share, settings)
        team.timeline.add("prepare", began, time.perf_counter())
        assert self._rank_device.flags is not None
        self._panels = GridPanels(exchange, layout, team.rank, share, device.done, self._rank_device.flags.pauses)
        rows_of_b = RowView(matrices.b, Span(0, part.problem.l))
        of_rank = RankMatrices(matrices.a, rows_of_b, matrices.c)
        self._transport = HostTransport(device, 0, of_rank, panel_stream=self._panels)
        self._to_pin: Sequence[np.ndarray] = (matrices.a, matrices.b, matrices.c)
        self._tile_progress = TileProgress(team, share, progress)

    def make_ready(self) -> None:
        """Make this rank ready for a product, in a phase that all ranks leave together before they multiply."""
        self._rank_device.pin(self._team, self._to_pin)
        self._to_pin = ()
        self._tile_progress.begin()
        self._panels.begin()
        self._rank_device.used_for(self._part, self._modular)  # so that no other product takes what is there for its own
        if self._settings.poison:
            self._rank_device.device.poison(self._rank_device.memory)

    def multiply(self) -> Timings:
        """Multiply this rank's part, in a phase. Returns what `Device.finish` does."""
        self._exchange.wait_for_a()
        device, panels = self._rank_device.device, self._panels
        timings = run_share(
            self._share, self._buffers, self._transport, device, self._tile_progress, gather=panels, modular=self._modular
        )
        self._exchange.wait_for_panel(self._layout.pieces["B"] - 1)  # a rank without rows receives for the others of its node
        return timings

    @property
    def arithmetic(self) -> Computed:
        """The arithmetic of this rank's part of C; empty where all of it is native."""
        return self._modular.done if self._modular is not None else {}


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
