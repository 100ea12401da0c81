# SPDX-License-Identifier: MIT
"""One rank's part of a product, wherever its matrices lie: multiply, check on the devices, and compute again what is wrong. It is
set up once, and run as often as wanted."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid.arrays.root_operands import MatrixSource
from hybrid.core.problem import Span
from hybrid.core.settings import Settings
from hybrid.core.text import tell_nobody
from hybrid.core.timeline import Timeline
from hybrid.devices.base import MOST_PLACES, Buffers, Place, Timings, place_of
from hybrid.devices.row_sums import ALL, NOT_INTEGRAL, SHARE, Sample
from hybrid.emulation.loaded_soon import wait_until_loaded
from hybrid.execution.between_nodes import PanelMoves, Panels
from hybrid.execution.pipeline import ShareRun, multiply_in_place
from hybrid.execution.session import Session
from hybrid.host.memory import RowView, copy_rows
from hybrid.host.threads import limited_threads, threads_allowed
from hybrid.planning.arithmetic import Computed
from hybrid.planning.decision import Decision
from hybrid.planning.plan import Plan
from hybrid.planning.schedule import CheckLayout, Piece, group_columns, tiles_of_others
from hybrid.planning.tiling import OperandLocation
from hybrid.ranks.heartbeat import busy, computing
from hybrid.transport.base import HostTransport, RankMatrices, Transport
from hybrid.transport.rank_device import RankDevice, make_transport, operands_in_place
from hybrid.verification.check import MOST_SUSPECTS, Check, Fault, Suspect
from hybrid.verification.copies import CopyChecksums, Findings, PiecesOfRanks, sums_of_other_nodes
from hybrid.verification.device_check import DeviceCheck, judge
from hybrid.verification.freivalds import Compared, HostCheck

if TYPE_CHECKING:
    from hybrid.devices.remainders import ModularProduct
    from hybrid.transport.nccl import DeviceGather


def modular_product(rank_device: RankDevice, decision: Decision, rank: int, settings: Settings) -> ModularProduct | None:
    """What computes the tiles of a rank's share from remainders, kept with its device from product to product. None where the
    rank's products are native. In a grid's layer a rank may have no terms at all."""
    plan, share = decision.plan.on_device(rank)
    if share.layout.remainders is None or not plan.problem.l:
        return None
    from hybrid.devices.remainders import ModularProduct  # native products start sooner without these modules
    from hybrid.kernels.catalogue import lacks_float64

    # All ranks do the last step alike, so that C's bits do not depend on which rank computes them.
    gpus = [placement.gpu for placement in decision.placements if placement.gpu is not None]
    how = {
        "fast": settings.precision == "fast",
        "by_integers": any(lacks_float64(gpu.capability) for gpu in gpus),
        "keeps_b": plan.has_row_blocks,
    }
    memory = rank_device.memory
    made: ModularProduct = rank_device.once_for_plan(
        f"modular {how}", decision.plan, lambda: ModularProduct(rank_device.device, memory, share, plan.problem, **how)
    )
    return made


_LARGE = 16 << 20  # bytes of A, B and C, from which on a sample of what is copied is read again for the check


@cache
def _give_libraries_time() -> None:
    """Wait for C libraries that take milliseconds to load, without which products take several times as long. Where they are
    compiled, once on a machine, only the first product waits, and others are multiplied meanwhile."""
    wait_until_loaded(0.3)


class RankCheck:
    """One rank's part of the check of products that devices multiply: sums on the device, and checksums of all that is copied.
    It is made for a call, and used for each of its products. `matrices`, `in_place`: as for `make_transport`."""

    def __init__(
        self, decision: Decision, rank_device: RankDevice, matrices: RankMatrices | None, in_place: Iterable[str]
    ) -> None:
        team, plan = rank_device.team, decision.plan
        self._team, self._plan, self._rank_device, self._in_place = team, plan, rank_device, frozenset(in_place)
        self._where, self._threads = decision.placements[team.rank].name, decision.placements[team.rank].threads.count
        self.device: DeviceCheck | None = None
        self.copies: CopyChecksums | None = None
        self._modular: ModularProduct | None = None
        self._findings: Sequence[Findings] = ()  # of all ranks, of the last product
        self._sample = ALL
        self._all_in_place = self._in_place == frozenset("ABC")
        if matrices is not None and not self._all_in_place:
            origin = 0 if plan.at_root else plan.shares[team.rank].rows.lo
            # A root that copies its own arrays sums the copies of all ranks, other ranks their own.
            everybody = plan.at_root and team.rank == plan.root
            pieces = dict(enumerate(self._all_pieces)) if everybody else {team.rank: self._all_pieces[team.rank]}
            # The root's arrays and shared matrices have the same panels, but not the same ranks copy them.
            copied_for = f"own pieces of ranks {[*pieces]}"
            own = self._once(copied_for, lambda: {rank: own_pieces(plan, self._all_pieces, rank) for rank in pieces})
            self.copies = CopyChecksums(
                plan.problem, pieces, rank_device.device, own, origin, decision.threads_of_copies(team.rank)
            )
            self.use(matrices)

    def use(self, matrices: RankMatrices | None) -> None:
        """In the next products these matrices are copied; None: refer to those before no more."""
        if self.copies is not None:
            c = None if matrices is None else matrices.c if matrices.rounded is None else matrices.rounded
            self.copies.use((matrices.a, matrices.b, c) if matrices is not None else None)

    def sample(self, sample: Sample) -> None:
        """Sum these lines of what is copied, which are the same on all ranks."""
        self._sample = sample
        for sums in (self.copies, self.device.sums if self.device is not None else None):
            if sums is not None:
                sums.sample(sample)

    def check_in(self, buffers: Buffers, modular: ModularProduct | None) -> None:
        """Have sums computed of what is in this rank's buffers, where `modular` computes the tiles."""
        self._modular = modular
        if self._plan.shares[self._team.rank].order:
            device, problem = self._rank_device.device, self._plan.problem
            layout = self._all_pieces[self._team.rank]
            size = self._plan.bytes_of_device_check(self._team.rank)
            self.device = self._once("sums", lambda: DeviceCheck(device, layout, problem), size)
            self.device.use(buffers)

    def result(self, moved: tuple[tuple[MatrixSource, MatrixSource], Mapping[str, RowView]] | None = None) -> Check:
        """The check of the product. Every rank calls it, when C is where it belongs.

        `moved`: between nodes: the operands, and what this rank sees of A, B and C.
        """
        with self._team.phase("check") as checking, busy():
            checking.mine = self._own_findings()
            if moved is not None:
                of_others = sums_of_other_nodes(self._team, self._plan, *moved, self._threads, self._all_pieces, self._sample)
                checking.mine.in_memory.update(of_others)
        self._findings, plan = checking.all, self._plan
        result = judge(plan.problem, group_columns(plan.device_memory), checking.all, self._all_pieces, plan.root)
        if not result.ok and self._modular is not None:
            self._modular.forget()  # what it keeps may be what is wrong
        return replace(result, sampled=self._sample.step) if self._sample.step > 1 else result

    def suspects(self) -> tuple[Suspect, ...]:
        """After an undecided check, all sums of C that look wrong, the same on every rank: of these the host may tell whether
        they are right without regard to rounding.

        There are none where other sums may be wrong, too, or where all elements are integers.
        """
        sums = [found.sums for found in self._findings if found.sums is not None]
        if not all(found.all_told for found in self._findings) or any(of_rank.not_judged for of_rank in sums):
            return ()
        if all(max(of_rank.largest_a, of_rank.largest_b) < NOT_INTEGRAL for of_rank in sums):
            return ()
        return tuple(suspect for found in self._findings for suspect in found.suspects)

    def _own_findings(self) -> Findings:
        suspects: tuple[Suspect, ...] = ()
        own, sums, on_device = self._team.rank, None, np.empty(0, np.uint64)
        if self.device is not None:
            sums, suspects = self.device.sums.compared()
            if not self._all_in_place:  # else nothing was copied
                on_device = self.device.sums.checksums_of_pieces()
        in_memory: dict[int, tuple[list[int], np.ndarray]] = self.copies.results() if self.copies is not None else {}
        if len(on_device) and self._in_place:  # what was not copied has the same checksums in memory: it is the same memory
            in_place = [piece.number for piece in self._all_pieces[own].pieces if piece.operand in self._in_place]
            summed, checksums = in_memory.get(own, ([], np.zeros(len(on_device), np.uint64)))
            checksums[in_place] = on_device[in_place]
            in_memory[own] = summed + in_place, checksums
        all_told = len({suspect.row for suspect in suspects}) < MOST_SUSPECTS
        return Findings(self._where, sums, on_device, in_memory, suspects, all_told)

    @cached_property
    def _all_pieces(self) -> PiecesOfRanks:
        """The pieces that the ranks copy, for each rank."""
        plan = self._plan
        return self._once("pieces", lambda: PiecesOfRanks(plan.check_layout(each) for each in range(self._team.size)))

    def _once(self, what: str, make: Callable[[], Any], device_bytes: int = 0) -> Any:
        """What `make` gave before for a plan with the same panels, or now gives."""
        of_check = f"{what} of the check, {self._plan.transport}, {group_columns(self._plan.device_memory)} columns in a group"
        return self._rank_device.once_for_plan(of_check, self._plan, make, device_bytes)


def own_pieces(plan: Plan, pieces: Sequence[CheckLayout], rank: int) -> frozenset[int]:
    """The numbers of those of a rank's pieces of A and B that count as summed by itself.

    Every rank of a node gets a copy of a piece of B, which only one of them has to sum. `pieces`: of all ranks.
    """
    layout = pieces[rank]
    # A number for each piece of B: the same on all ranks that get it, in whichever order.
    of_b = {(piece.columns, piece.rows) for piece in layout.pieces if piece.operand == "B"}
    numbers = {place: number for number, place in enumerate(sorted(of_b))}
    multiplying = [each for each in plan.topology.nodes[plan.topology.node_of(rank)] if plan.shares[each].order]

    def sums(piece: Piece) -> bool:
        if piece.operand == "A" or plan.transport in ("peers", "nccl"):
            return piece.operand == "A" or piece.rows.lies_in(plan.b_rows_over_link(rank))
        return multiplying[numbers[piece.columns, piece.rows] % len(multiplying)] == rank

    return frozenset(piece.number for piece in layout.pieces if piece.operand != "C" and sums(piece))


class RankRun:
    """The multiplication, set up as far as can be done before the clock runs. Every rank makes one."""

    def __init__(
        self,
        session: Session,
        decision: Decision,
        matrices: RankMatrices | None,
        read_and_written: Sequence[Any],
        settings: Settings,
        progress: Progress,
        moves: PanelMoves | None = None,
        c_of_node: RowView | None = None,
    ) -> None:
        """`matrices`: as for `make_transport`. `read_and_written`: by this rank's copies, the last of them.

        `moves`: how column panels of B come from other nodes, and those of C go to them, by MPI; None if they do not.
        `c_of_node`: the rows of C in this node's memory, which is needed where C goes from device to device, and where it is
        symmetric.
        """
        team, plan = session.team, decision.plan
        self._team, self._plan = team, plan
        _, self._share = plan.on_device(team.rank)
        self._poisoned, self._staged = settings.poison and plan.staged, plan.staged
        self._matrices, self._c_of_node = matrices, c_of_node
        self._progress, self._submitted = progress, 0
        self._tiles = sum(len(arrival.releases) for arrival in self._share.order)
        self._timings: Timings = ()
        self._modular: ModularProduct | None = None
        self._transport: Transport | None = None
        self._buffers: Buffers | None = None
        began = time.perf_counter()
        gpus = [placement.gpu for placement in decision.placements]
        self._rank_device = session.device(plan, gpus, decision.kernel)
        self._rank_device.device.timed = True
        self._device_gather: DeviceGather | None = None
        if plan.c_between_devices:
            from hybrid.transport.nccl import DeviceGather

            assert c_of_node is not None
            self._device_gather = DeviceGather(plan, self._rank_device, c_of_node)
        self._panels = Panels(plan, self._share, self._rank_device, moves) if moves is not None else None
        in_place = operands_in_place(plan, team.rank, self._rank_device.device, matrices)
        self.device_check: RankCheck | None = None
        if plan.check == "device":
            # What is made on the device, as the transpose of the other operand, was not copied. Where it is wrong, C's mirrored
            # half is not A·B.
            not_copied = {*in_place, *{"A": "B", "B": "A"}.get(plan.problem.symmetric, "")}
            if matrices is not None and matrices.rounded is not None:
                not_copied.add("C")  # not as it was computed
            self.device_check = RankCheck(decision, self._rank_device, matrices, not_copied)
        if plan.staged:
            observer = self.device_check.copies if self.device_check else None
            self._transport, self._buffers = make_transport(
                plan, self._rank_device, matrices, observer, self._panels, in_place, self._device_gather
            )
            with team.phase("prepare", timed=False) as preparing, busy():
                preparing.mine = secrets.randbelow(SHARE)
                self._modular = modular_product(self._rank_device, decision, team.rank, settings)
                if self.device_check is not None:
                    self.device_check.check_in(self._buffers, self._modular)
                if self._rank_device.gpu is not None:
                    _give_libraries_time()
            if self.device_check is not None:
                self._sums_all = settings.check == "full" or plan.problem.bytes_of_matrices < _LARGE
                self.device_check.sample(ALL if self._sums_all else Sample(SHARE, preparing.all[plan.root]))
            team.timeline.add("prepare", began, time.perf_counter())
        self._copied: Sequence[Any] = read_and_written if plan.staged else ()
        self._threads = decision.threads_of_copies(team.rank)
        self._kernel = decision.kernel
        # Where all matrices lie on the GPU, and its kernels alone multiply, the next product takes the same launches.
        all_there = self._rank_device.gpu is not None and len(in_place) == len("ABC")
        self._may_record = all_there and self._modular is None and not self._poisoned
        self._recordings: dict[tuple[Place, ...], Any] = {}  # what the device has enqueued, by the places of A, B and C

    def use(self, matrices: RankMatrices, copied: Sequence[Any]) -> None:
        """Multiply these matrices next, of a process alone, which lie where those before them did: in host memory, or in place
        on the device. `copied`: those that are."""
        self._matrices, self._copied, self._rank_device.device.timed = matrices, copied, False
        if self.device_check is not None and copied:
            self.device_check.use(matrices)
            self.device_check.sample(ALL if self._sums_all else Sample(SHARE, secrets.randbelow(SHARE)))

    def let_go(self) -> None:
        """Refer no more to the matrices."""
        self._matrices = self._transport = self._buffers = None
        self._copied = ()
        if self.device_check is not None:
            self.device_check.use(None)

    def make_ready(self, *, again: bool = False) -> None:
        """Make this rank ready for a product, in a phase that all ranks leave together before they multiply. `again`: others of
        the same matrices follow."""
        again = again or self._plan.operands is OperandLocation.NODE_SHARED
        self._rank_device.prepare_copies(self._copied, self._threads, again=again)
        self._copied = ()
        self._submitted = 0
        if self.device_check is not None and self.device_check.copies is not None:
            self.device_check.copies.begin()
        if self._rank_device.flags is not None:
            self._rank_device.flags.new_round()
        for moving in (self._panels, self._device_gather):
            if moving is not None:
                moving.begin()
        kept = self._rank_device.used_by(self._modular)
        if self._poisoned:
            self._rank_device.device.poison(self._rank_device.memory)
        if self._modular is not None and (self._poisoned or not kept):
            self._modular.forget()

    def multiply(self) -> None:
        """Multiply this rank's row block by B. Every rank calls it."""
        with self._team.phase("multiply", timed=False):
            self.multiply_in_phase()
        if self._plan.problem.symmetric and self._team.size > 1:
            with self._team.phase("multiply", timed=False):
                self.mirror_in_phase()

    def mirror_in_phase(self) -> None:
        """Of a symmetric C: write what other ranks have computed of this rank's rows, in a phase after theirs."""
        if self._team.size > 1:
            assert self._matrices is not None
            assert self._c_of_node is not None
            for tile in tiles_of_others(self._share.blocks, self._team.rank):
                computed = self._c_of_node[tile.columns][:, tile.rows.moved(self._share.rows.lo).slice]
                copy_rows(self._matrices.c[tile.rows.slice, tile.columns.slice], computed.T, threads_allowed())

    def multiply_in_phase(self) -> None:
        """`multiply` within a phase of the caller."""
        plan, progress = self._plan, self._rank_device.device.progress
        with computing(plan.problem.operations) if plan.device == "cpu" else busy(progress):
            try:
                if self._panels is not None and self._plan.grid_layout is not None:
                    self._panels.wait_for_panels(1)  # and with the first one for A
                self._timings = self._multiply()
                if self._panels is not None:
                    self._panels.wait_for_panels()
            except BaseException:
                self._rank_device.drain()
                raise
            if self._panels is None and self._plan.operands is OperandLocation.NODE_SHARED:
                self._team.enter("gather")  # C is where it belongs

    def gather(self) -> None:
        """Send what is left of C, when all is multiplied, to the root's node. Every rank calls it."""
        began = time.perf_counter()
        if self._panels is None:
            self._team.timeline.add("gather", began, began)
            return
        with self._team.phase("gather"):
            self._panels.finish()

    @property
    def c_on_device(self) -> Any:
        """C of a complete product, in the device's buffers, where these hold all of it."""
        assert self._buffers is not None
        return self._buffers.c

    def abandon(self) -> None:
        """Give up the product, which has failed on this rank or another. When this returns, no thread reads or writes the
        matrices."""
        self._rank_device.give_up_copies()
        if self.device_check is not None and self.device_check.copies is not None:
            self.device_check.copies.abandon()

    @property
    def arithmetic(self) -> Computed:
        """The arithmetic of this rank's part of C in the last product; empty where all of it is native."""
        return self._modular.done if self._modular is not None else {}

    def note_work(self) -> None:
        """Note, after the clock has stopped, when each copy and kernel of the product ran. A phase must follow, which tells the
        other ranks if this fails."""
        for phase, begin, end in self._timings:
            self._team.timeline.add(phase, begin, end)
        self._timings = ()

    def _multiply(self) -> Timings:
        device = self._rank_device.device
        if not self._staged:
            assert self._matrices is not None
            return multiply_in_place(self._share, self._matrices, device, self._entering, self._panels)
        if not self._may_record:
            return self._share_run().run()
        recorded = self._recorded()
        if recorded is not None:
            self._entering("multiply")
            device.enqueue_again(recorded)
            return device.finish()
        timings, recorded = device.recorded(self._share_run().run)
        if len(self._recordings) >= MOST_PLACES:
            del self._recordings[next(iter(self._recordings))]
        self._recordings[self._places] = recorded
        return timings

    @property
    def _places(self) -> tuple[Place, ...]:
        assert self._matrices is not None
        return place_of(self._matrices.a), place_of(self._matrices.b.array), place_of(self._matrices.c)

    def _recorded(self) -> Any:
        """What the device has enqueued for a product of matrices at the same places; None where there was none, lately."""
        return self._recordings.get(self._places)

    def _share_run(self) -> ShareRun:
        made, plan, rank, matrices = self._rank_device, self._plan, self._team.rank, self._matrices
        if self._buffers is None:
            assert matrices is not None
            in_place = operands_in_place(plan, rank, made.device, matrices)
            made.device.use_kernel(self._kernel, plan.problem.operand_dtype, adding=plan.adds)
            observer = self.device_check.copies if self.device_check is not None else None
            self._transport = HostTransport(made.device, rank, matrices, observer, in_place=in_place)
            self._buffers = made.own_buffers(plan, rank, in_place)
            if self.device_check is not None and self.device_check.device is not None:
                self.device_check.device.use(self._buffers)
        check = self.device_check.device if self.device_check is not None else None
        assert self._transport is not None
        parts = self._share, self._buffers, self._transport, made.device, self._entering
        return ShareRun(*parts, check, self._panels or self._device_gather, self._modular)

    def _entering(self, phase: str) -> None:
        """Tell the phase of the next copy or multiplication, and how many of the share's tiles have been submitted."""
        self._team.enter(phase)
        if phase == "multiply":
            self._progress("multiply", self._submitted, self._tiles)
            self._submitted += 1


# Told what is being done, how much of it is done, and of how much; on every rank.
Progress = Callable[[str, int, int], None]


class CheckedRun(ABC):
    """One rank's part of a product. Every rank makes one, and calls its methods; subclasses bring the matrices to where they are
    multiplied."""

    run: RankRun  # the multiplication, set up

    def __init__(self, session: Session, decision: Decision, settings: Settings, seed: int | None = None) -> None:
        """`seed`: of the host's check, the same on all ranks; None: they agree on one."""
        self.session, self.team, self.decision, self.settings = session, session.team, decision, settings
        self.plan, self.share = decision.plan, decision.plan.shares[session.team.rank]
        self.threads = decision.placements[session.team.rank].threads.count
        self.views: dict[str, RowView] = {}  # what this rank sees of A, B and C
        self.in_workspace = False  # they, or B, are in memory that the node's ranks keep from call to call
        self.seed = seed
        self._own_check: HostCheck | None = None  # of a product that this rank has compared as soon as it was multiplied
        self._compared: list[Compared] = []  # then, by all ranks
        self._is_set_up = False

    def of_arrays(self, a: Any, b: Any, c: Any, copied: Sequence[Any]) -> Check | None:
        """Compute c = a · b of matrices of this process alone, and check it. That may be done again and again, with others;
        between two products nothing refers to any. `copied`: those of them that are."""
        self.team.timeline = Timeline()
        self.views = {key: RowView(array, Span(0, len(array))) for key, array in zip("ABC", (a, b, c), strict=True)}
        matrices = RankMatrices(a, self.views["B"], c)
        try:
            if self._is_set_up:
                self.run.use(matrices, copied)
            else:
                parts = self.session, self.decision, matrices, copied, self.settings
                self.run, self._is_set_up = RankRun(*parts, tell_nobody), True
            return self.computed()
        finally:
            self.views = {}
            if self._is_set_up:
                self.run.let_go()

    def computed(self) -> Check | None:
        """Compute the product. Returns its check."""
        try:
            self.multiply()
            return self.checked()
        except BaseException:
            self.run.abandon()
            raise

    @abstractmethod
    def multiply(self) -> None:
        """Compute the product, or compute it once more."""

    @abstractmethod
    def b_to_compare_with(self) -> RowView | None:
        """All of B, with which this rank can compare its rows of C alone; None where it cannot."""

    def multiply_and_compare(self) -> None:
        """Multiply in the workspace; and where each rank can do it alone, compare the product, so that one exchange tells of
        both. What ranks have multiplied of a symmetric C in a phase before is mirrored."""
        plan, seed = self.plan, self.seed
        multiply = self.run.mirror_in_phase if plan.problem.symmetric else self.run.multiply_in_phase
        with self.team.phase("multiply", timed=False) as multiplying:
            compares = plan.check == "host" and seed is not None and plan.problem.n * plan.problem.m > 0
            b = self.b_to_compare_with() if compares else None
            if b is None:
                multiply()
            else:
                matrices, by = (self.views["A"], b, self.views["C"]), self.decision.multiplied_by
                self._own_check = HostCheck(self.team, plan, matrices, self.threads, by, has_all_of_b=True)
                in_place = plan.device == "cpu" and not (plan.staged or plan.problem.symmetric)
                in_passing = in_place and self.decision.kernel.name == "blas"
                if not in_passing:
                    multiply()
                self.team.enter("check" if not in_passing else "multiply")
                with computing(plan.problem.operations):
                    multiplying.mine = self._own_check.compared(seed, multiply if in_passing else None)
        self._compared = multiplying.all
        if any(each is None for each in self._compared):  # a rank's B has changed on its way: all of the check tells
            self._own_check = None
        elif self._own_check is not None:
            self.seed = None

    @abstractmethod
    def check_on_devices(self, check: RankCheck) -> Check:
        """The result of this check, and of what was copied to where the devices read it."""

    def check_on_host(self, suspects: Sequence[Suspect] = ()) -> Check:
        """The check from host memory."""
        with busy():
            if self._own_check is not None:
                own, self._own_check = self._own_check, None
                return own.judged(self._compared)
            check = HostCheck(self.team, self.plan, self.on_host(), self.threads, self.decision.multiplied_by)
            seed, self.seed = self.seed, None
            return check.result(seed, suspects)

    def on_host(self) -> list[RowView]:
        """What this rank sees of A, B and C, in host memory."""
        return [self.views[key] for key in "ABC"]

    def checked(self) -> Check | None:
        """The check of the last product, after its repair; None where no check is asked for. What is wrong is computed once more,
        unless rows differ between nodes: nobody can tell which are right."""
        if self.plan.check == "off":
            return None
        failed = self._looked_at()
        if failed.ok or self.settings.on_fault != "repair" or any(fault.code == "check-exchange" for fault in failed.faults):
            return failed
        timeline, began = self.team.timeline, time.perf_counter()
        repeat, timeline.repeat = timeline.repeat, -1  # its phases are no product's: all of it is repair
        with limited_threads(self.threads):
            self.multiply()
            check = self._looked_at()
        timeline.repeat = repeat
        timeline.add("repair", began, time.perf_counter())
        if not check.ok:
            return replace(failed, faults=(*failed.faults, Fault(f"C is still wrong: {check.refusal()}")), undecided=False)
        lines = {fault.rank: f"{fault}; the product was computed once more" for fault in failed.faults}
        note = f"repaired; {check.note}" if check.note else "repaired"
        return replace(check, note=note, repaired=tuple(lines.values()), undecided=False)

    def _looked_at(self) -> Check:
        on_devices = self.run.device_check
        check = self.check_on_devices(on_devices) if on_devices is not None else None
        if check is not None and not check.undecided:
            return check
        with limited_threads(self.threads):
            by_host = self.check_on_host(on_devices.suspects() if on_devices is not None else ())
        return by_host if check is None else check.settled(by_host)
