# SPDX-License-Identifier: MIT
"""One rank's part of a product, wherever its matrices are: set up once; multiplied, checked and repaired any number of times."""

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
from hybrid.execution.between_nodes import Panels
from hybrid.execution.pipeline import ShareRun, multiply_in_place
from hybrid.execution.session import Session
from hybrid.host.memory import RowView, copy_rows
from hybrid.host.threads import limited_threads, threads_allowed
from hybrid.planning.arithmetic import Computed
from hybrid.planning.decision import Decision
from hybrid.planning.plan import Plan, rows_written
from hybrid.planning.schedule import CheckLayout, Piece, group_columns, tiles_of_others
from hybrid.planning.tiling import OperandLocation
from hybrid.ranks.heartbeat import busy
from hybrid.transport.base import RankMatrices, Transport
from hybrid.transport.rank_device import RankDevice, make_transport, operands_in_place
from hybrid.verification.check import MOST_SUSPECTS, Check, Fault, Suspect
from hybrid.verification.copies import CopyChecksums, Findings, PiecesOfRanks, sums_of_other_nodes
from hybrid.verification.device_check import DeviceCheck, judge
from hybrid.verification.freivalds import Compared, HostCheck

if TYPE_CHECKING:
    from hybrid.devices.remainders import ModularProduct
    from hybrid.transport.nccl import DeviceGather


# Gets the phase's name, the amount done and the total; called on every rank.
Progress = Callable[[str, int, int], None]


def modular_product(rank_device: RankDevice, decision: Decision, rank: int, settings: Settings) -> ModularProduct | None:
    """The emulated product for this rank's tiles, cached with its device; None if they are native or there are no terms."""
    plan, share = decision.plan.on_device(rank)
    if share.layout.remainders is None or not plan.problem.l:
        return None
    from hybrid.devices.remainders import ModularProduct  # native products need not wait for these imports
    from hybrid.kernels.catalogue import lacks_float64

    # All ranks use the same last step, so that C's bits do not depend on the rank that computes them.
    gpus = [placement.gpu for placement in decision.placements if placement.gpu is not None]
    fast, by_integers = settings.precision == "fast", any(lacks_float64(gpu.capability) for gpu in gpus)

    def make() -> ModularProduct:
        return ModularProduct(rank_device.device, rank_device.memory, share, plan.problem, fast=fast, by_integers=by_integers)

    made: ModularProduct = rank_device.once_for_plan(f"modular, {fast=}, {by_integers=}", decision.plan, make)
    return made


_SAMPLED_FROM = 16 << 20  # bytes of A, B and C: from this size on, the check re-reads only a sample of the copied data


@cache
def _wait_for_libraries() -> None:
    """Wait for C libraries that load in milliseconds: products without them take several times as long. While a machine compiles
    them, once, only the first product waits; later ones go on without."""
    wait_until_loaded(0.3)


class RankCheck:
    """One rank's part of the device check, for all products of a call: row sums on the device, and checksums of every copy.
    `matrices`, `in_place`: as for `make_transport`."""

    def __init__(
        self, decision: Decision, rank_device: RankDevice, matrices: RankMatrices | None, in_place: Iterable[str]
    ) -> None:
        team, plan = rank_device.team, decision.plan
        self._team, self._plan, self._rank_device, self._in_place = team, plan, rank_device, frozenset(in_place)
        self._where, self._threads = decision.placements[team.rank].name, decision.placements[team.rank].threads.count
        self.device: DeviceCheck | None = None
        self.copies: CopyChecksums | None = None
        self._findings: Sequence[Findings] = ()  # of all ranks, for the last product
        self._sample = ALL
        self._all_in_place = self._in_place == frozenset("ABC")
        if matrices is not None and not self._all_in_place:
            origin = 0 if plan.at_root else plan.shares[team.rank].rows.lo
            # With arrays at the root, the root computes the checksums of all ranks' copies; otherwise each rank those of its own.
            everybody = plan.at_root and team.rank == plan.root
            pieces = dict(enumerate(self._all_pieces)) if everybody else {team.rank: self._all_pieces[team.rank]}
            # Root arrays and shared matrices have the same panels, copied by different ranks.
            copied_for = f"own pieces of ranks {[*pieces]}"
            own = self._once(copied_for, lambda: {rank: own_pieces(plan, self._all_pieces, rank) for rank in pieces})
            self.copies = CopyChecksums(
                plan.problem, pieces, rank_device.device, own, origin, decision.threads_of_copies(team.rank)
            )
            self.use(matrices)

    def use(self, matrices: RankMatrices | None) -> None:
        """Use these matrices for the next products; None: drop the references."""
        if self.copies is not None:
            self.copies.use((matrices.a, matrices.b, matrices.c) if matrices is not None else None)

    def sample(self, number: int, *, everything: bool) -> None:
        """Sum only some lines of each copy of large matrices, by this number the same on all ranks, unless `everything`."""
        small = self._plan.problem.bytes_of_matrices < _SAMPLED_FROM
        self._sample = ALL if everything or small else Sample(SHARE, number)
        for sums in (self.copies, self.device.sums if self.device is not None else None):
            if sums is not None:
                sums.sample(self._sample)

    def attach(self, buffers: Buffers) -> None:
        """Check the contents of these device buffers."""
        if self._plan.shares[self._team.rank].order:
            device, problem = self._rank_device.device, self._plan.problem
            layout = self._all_pieces[self._team.rank]
            size = self._plan.bytes_of_device_check(self._team.rank)
            self.device = self._once("sums", lambda: DeviceCheck(device, layout, problem), size)
            self.device.use(buffers)

    def result(self, moved: tuple[tuple[MatrixSource, MatrixSource], Mapping[str, RowView]] | None = None) -> Check:
        """The check of a complete C. Collective. `moved`: with several nodes, the operands and this rank's A, B and C."""
        with self._team.phase("check") as checking, busy():
            checking.mine = self._own_findings()
            if moved is not None:
                of_others = sums_of_other_nodes(self._team, self._plan, *moved, self._threads, self._all_pieces, self._sample)
                checking.mine.in_memory.update(of_others)
        self._findings, plan = checking.all, self._plan
        result = judge(plan.problem, group_columns(plan.device_memory), checking.all, self._all_pieces, plan.root)
        return replace(result, sampled=self._sample.step) if self._sample.step > 1 else result

    def suspects(self) -> tuple[Suspect, ...]:
        """After an undecided check, all suspicious sums of C, the same on every rank, which the host can decide exactly.

        Empty if sums beyond these may be wrong, or if all elements are integers.
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
        if len(on_device) and self._in_place:  # operands in place are the same memory, so have the same checksums
            in_place = [piece.number for piece in self._all_pieces[own].pieces if piece.operand in self._in_place]
            summed, checksums = in_memory.get(own, ([], np.zeros(len(on_device), np.uint64)))
            checksums[in_place] = on_device[in_place]
            in_memory[own] = summed + in_place, checksums
        all_told = len({suspect.row for suspect in suspects}) < MOST_SUSPECTS
        return Findings(self._where, sums, on_device, in_memory, suspects, all_told)

    @cached_property
    def _all_pieces(self) -> PiecesOfRanks:
        """Each rank's copied pieces."""
        plan = self._plan
        return self._once("pieces", lambda: PiecesOfRanks(plan.check_layout(each) for each in range(self._team.size)))

    def _once(self, what: str, make: Callable[[], Any], device_bytes: int = 0) -> Any:
        """The result of `make`, cached for plans with the same panels."""
        of_check = f"{what} of the check, {self._plan.transport}, {group_columns(self._plan.device_memory)} columns in a group"
        return self._rank_device.once_for_plan(of_check, self._plan, make, device_bytes)


def own_pieces(plan: Plan, pieces: Sequence[CheckLayout], rank: int) -> frozenset[int]:
    """The numbers of the pieces of A and B whose host checksum this rank computes: each piece of B reaches all ranks of a node,
    and one of them sums it. `pieces`: of all ranks."""
    layout = pieces[rank]
    # Pieces of B are numbered by place: the same number on all ranks that receive them, in any order.
    of_b = {(piece.columns, piece.rows) for piece in layout.pieces if piece.operand == "B"}
    numbers = {place: number for number, place in enumerate(sorted(of_b))}
    multiplying = [each for each in plan.topology.nodes[plan.topology.node_of(rank)] if plan.shares[each].order]

    def sums(piece: Piece) -> bool:
        if piece.operand != "B":
            return piece.operand == "A"
        if plan.transport in ("peers", "nccl"):
            return piece.rows.lies_in(plan.b_rows_over_link(rank))
        return multiplying[numbers[piece.columns, piece.rows] % len(multiplying)] == rank

    return frozenset(piece.number for piece in layout.pieces if sums(piece))


class RankRun(ABC):
    """One rank's part of a product, from multiplication to check and repair. Every rank constructs one; its methods are
    collective. Subclasses place the matrices, then `set_up` prepares all that the product's time excludes."""

    device_check: RankCheck | None = None

    def __init__(
        self, session: Session, decision: Decision, settings: Settings, seed: int | None = None, progress: Progress = tell_nobody
    ) -> None:
        """`seed`: of the host's check, the same on all ranks; None: they agree on one."""
        self.session, self.team, self.decision, self.settings = session, session.team, decision, settings
        self.plan, self.share = decision.plan, decision.plan.shares[session.team.rank]
        self.threads = decision.placements[session.team.rank].threads.count
        self.views: dict[str, RowView] = {}  # this rank's views of A, B and C
        self.in_workspace = False  # all of them, or B, are in the workspace that the node's ranks keep between calls
        self.seed, self.progress = seed, progress
        self._submitted = 0  # tiles of the current product
        self._timings: Timings = ()
        # Of a product that each rank compared right after multiplying: this rank's check, and the comparisons of all ranks.
        self._own_check: HostCheck | None = None
        self._compared: list[Compared] = []
        self._is_set_up = False

    # --- set-up

    def set_up(self, matrices: RankMatrices | None, panels: Panels | None = None) -> None:
        """Set up the multiplication. `matrices`: as for `make_transport`. `panels`: of B and C between nodes, if they move."""
        team, plan, decision = self.team, self.plan, self.decision
        began = time.perf_counter()
        self._matrices, self._device_share = matrices, plan.on_device(team.rank)[1]
        self._tiles = sum(len(arrival.releases) for arrival in self._device_share.order)
        self._modular: ModularProduct | None = None
        self._connection: tuple[Transport, Buffers] | None = None
        gpus = [placement.gpu for placement in decision.placements]
        self._rank_device = self.session.device(plan, gpus, decision.kernel)
        self._rank_device.device.timed = True
        self._device_gather: DeviceGather | None = None
        if plan.c_between_devices:
            from hybrid.transport.nccl import DeviceGather

            self._device_gather = DeviceGather(plan, self._rank_device, self.views["C"])
        self._panels = panels
        if panels is not None:
            panels.attach(plan, self._device_share, self._rank_device)
        in_place = operands_in_place(plan, team.rank, self._rank_device.device, matrices)
        self._all_in_place = self._rank_device.gpu is not None and len(in_place) == len("ABC")
        self.device_check = None
        if plan.check == "device":
            # A symmetric product transposes one operand on the device; if wrong, the sums of C's mirrored half are too.
            not_copied = {*in_place, *{"A": "B", "B": "A"}.get(plan.problem.symmetric, "")}
            self.device_check = RankCheck(decision, self._rank_device, matrices, not_copied)
        if plan.staged:
            _, buffers = self._connect(in_place)
            with team.phase("prepare", timed=False) as preparing, busy():
                preparing.mine = secrets.randbelow(SHARE)
                self._modular = modular_product(self._rank_device, decision, team.rank, self.settings)
                if self.device_check is not None:
                    self.device_check.attach(buffers)
                if self._rank_device.gpu is not None:
                    _wait_for_libraries()
            if self.device_check is not None:
                self.device_check.sample(preparing.all[plan.root], everything=self.settings.check == "full")
            team.timeline.add("prepare", began, time.perf_counter())
        self._copied = self._copied_arrays()
        # With all matrices on the GPU and native kernels, the next product repeats the same launches.
        self._may_record = self._all_in_place and self._modular is None and not self._poisoned
        self._recordings: dict[tuple[Place, ...], Any] = {}  # enqueued device work, by the addresses of A, B and C
        self._is_set_up = True

    def _connect(self, in_place: Mapping[str, Any]) -> tuple[Transport, Buffers]:
        """Make the transport and the buffers that it fills. `in_place`: as for `make_transport`."""
        observer = self.device_check.copies if self.device_check is not None else None
        self._connection = made = make_transport(
            self.plan, self._rank_device, self._matrices, observer, self._panels, in_place, self._device_gather
        )
        return made

    def _copied_arrays(self) -> Sequence[Any]:
        """The arrays that this rank's device copies access; only the last is written."""
        plan, matrices, rank = self.plan, self._matrices, self.team.rank
        if matrices is None or not plan.staged or self._all_in_place:
            return ()
        whole_b = plan.at_root or plan.transport == "host"
        b = matrices.b.array if whole_b else matrices.b[plan.b_rows_over_link(rank)]
        return matrices.a, b, self.views["C"][rows_written(plan, rank)] if plan.c_between_devices else matrices.c

    @property
    def _poisoned(self) -> bool:
        return self.settings.poison and self.plan.staged

    def of_arrays(self, a: Any, b: Any, c: Any) -> Check | None:
        """Compute and check c = a · b in a process alone. Callable repeatedly with other matrices, each in the same kind of
        memory as its predecessor: host memory, or in place on the device. Keeps no references between calls."""
        self.team.timeline = Timeline()
        self.views = {key: RowView(array, Span(0, len(array))) for key, array in zip("ABC", (a, b, c), strict=True)}
        matrices = RankMatrices(a, self.views["B"], c)
        try:
            if self._is_set_up:
                self._use(matrices)
            else:
                self.set_up(matrices)
            return self.computed()
        finally:
            self.views, self._copied = {}, ()
            self._matrices = self._connection = None
            if self.device_check is not None:
                self.device_check.use(None)

    def _use(self, matrices: RankMatrices) -> None:
        self._matrices, self._rank_device.device.timed = matrices, False
        self._copied = self._copied_arrays()
        if self.device_check is not None and self._copied:
            self.device_check.use(matrices)
            self.device_check.sample(secrets.randbelow(SHARE), everything=self.settings.check == "full")

    # --- multiplication

    def computed(self) -> Check | None:
        """Compute the product and return its check."""
        try:
            self.multiply()
            return self.checked()
        except BaseException:
            self.abandon()
            raise

    @abstractmethod
    def multiply(self) -> None:
        """Compute the product; called again for a repair."""

    def begin(self, *, again: bool = False) -> None:
        """Prepare copies and flags of the next product, in a phase before it. `again`: the same matrices will come again."""
        again = again or self.plan.operands is OperandLocation.NODE_SHARED
        self._rank_device.prepare_copies(self._copied, self.decision.threads_of_copies(self.team.rank), again=again)
        self._copied, self._submitted = (), 0
        if self.device_check is not None and self.device_check.copies is not None:
            self.device_check.copies.begin()
        if self._rank_device.flags is not None:
            self._rank_device.flags.new_round()
        for moving in (self._panels, self._device_gather):
            if moving is not None:
                moving.begin()
        if self._poisoned:
            self._rank_device.device.poison(self._rank_device.memory)

    def multiply_rows(self) -> None:
        """Multiply this rank's row block by B."""
        with self.team.phase("multiply", timed=False):
            self.multiply_in_phase()
        if self.plan.problem.symmetric and self.team.size > 1:
            with self.team.phase("multiply", timed=False):
                self.mirror_in_phase()

    def multiply_in_phase(self) -> None:
        """`multiply_rows` within a phase of the caller."""
        with busy():
            try:
                if self._panels is not None and self.plan.grid_layout is not None:
                    self._panels.wait_for_panels(1)  # A arrives with the first panel
                self._timings = self._multiply()
                if self._panels is not None:
                    self._panels.wait_for_panels()
            except BaseException:
                self._rank_device.drain()
                self.session.decisions.clear()  # the memory that they counted on may be what was missing
                raise
            if self._panels is None and self.plan.operands is OperandLocation.NODE_SHARED:
                self.team.enter("gather")  # C is already in place

    def mirror_in_phase(self) -> None:
        """Mirror the tiles of a symmetric C that other ranks computed into this rank's rows, in a phase after theirs."""
        assert self._matrices is not None
        for tile in tiles_of_others(self.share.blocks, self.team.rank):
            computed = self.views["C"][tile.columns][:, tile.rows.moved(self.share.rows.lo).slice]
            copy_rows(self._matrices.c[tile.rows.slice, tile.columns.slice], computed.T, threads_allowed())

    def gather(self) -> None:
        """Send the rest of C to the root's node, after the multiplication."""
        began = time.perf_counter()
        if self._panels is None:
            self.team.timeline.add("gather", began, began)
            return
        with self.team.phase("gather"):
            self._panels.finish()

    def abandon(self) -> None:
        """Give up the product after a failure on any rank. When this returns, no thread accesses the matrices."""
        self._rank_device.give_up_copies()
        if self.device_check is not None and self.device_check.copies is not None:
            self.device_check.copies.abandon()

    @property
    def arithmetic(self) -> Computed:
        """The arithmetic behind this rank's part of the last C; empty if all native."""
        return self._modular.done if self._modular is not None else {}

    def note_work(self) -> None:
        """Add the times of copies and kernels to the timeline, after the clock has stopped. A phase must follow, for failures."""
        for phase, begin, end in self._timings:
            self.team.timeline.add(phase, begin, end)
        self._timings = ()

    def _multiply(self) -> Timings:
        device, matrices = self._rank_device.device, self._matrices
        if not self.plan.staged:
            assert matrices is not None
            return multiply_in_place(self._device_share, matrices, device, self._entering, self._panels)
        if not self._may_record:
            return self._share_run().run()
        assert matrices is not None
        places = place_of(matrices.a), place_of(matrices.b.array), place_of(matrices.c)
        recorded = self._recorded(places)
        if recorded is not None:
            self._entering("multiply")
            device.enqueue_again(recorded)
            return device.finish()
        timings, recorded = device.recorded(self._share_run().run)
        if len(self._recordings) >= MOST_PLACES:
            del self._recordings[next(iter(self._recordings))]
        self._recordings[places] = recorded
        return timings

    def _recorded(self, places: tuple[Place, ...]) -> Any:
        """A recording for these addresses, or None. `hybrid.testing` replaces this method, to see each operation."""
        return self._recordings.get(places)

    def _share_run(self) -> ShareRun:
        device, connection = self._rank_device.device, self._connection
        if connection is None:  # dropped after the previous product; others may have used the device since
            device.use_kernel(self.decision.kernel, self.plan.problem.operand_dtype, adding=self.plan.adds)
            connection = self._connect(operands_in_place(self.plan, self.team.rank, device, self._matrices))
            if self.device_check is not None:
                self.device_check.attach(connection[1])
        transport, buffers = connection
        check = self.device_check.device if self.device_check is not None else None
        gather = self._panels or self._device_gather
        return ShareRun(self._device_share, buffers, transport, device, self._entering, check, gather, self._modular)

    def _entering(self, phase: str) -> None:
        """Report the phase of the next copy or multiplication, and how many of the share's tiles have been submitted."""
        self.team.enter(phase)
        if phase == "multiply":
            self.progress("multiply", self._submitted, self._tiles)
            self._submitted += 1

    # --- check and repair

    @abstractmethod
    def b_to_compare_with(self) -> RowView | None:
        """All of B, if this rank can check its rows of C without other ranks; else None."""

    def multiply_and_compare(self) -> None:
        """Multiply in the workspace and, if each rank can check its own rows, compare in the same phase, which saves an exchange.
        A symmetric C, multiplied in an earlier phase, is only mirrored here."""
        plan, seed = self.plan, self.seed
        multiply = self.mirror_in_phase if plan.problem.symmetric else self.multiply_in_phase
        with self.team.phase("multiply", timed=False) as multiplying:
            compares = plan.check == "host" and seed is not None and plan.problem.n * plan.problem.m > 0
            b = self.b_to_compare_with() if compares else None
            if b is None:
                multiply()
            else:
                matrices, by = (self.views["A"], b, self.views["C"]), self.decision.multiplied_by
                self._own_check = HostCheck(self.team, plan, matrices, self.threads, by, has_all_of_b=True)
                in_place = plan.device == "cpu" and not (plan.staged or plan.problem.symmetric)
                interleaved = in_place and self.decision.kernel.name == "blas"  # compares parts of C while they are in cache
                if not interleaved:
                    multiply()
                self.team.enter("multiply" if interleaved else "check")
                with busy():
                    multiplying.mine = self._own_check.compared(seed, multiply if interleaved else None)
        self._compared = multiplying.all
        if any(each is None for each in self._compared):  # some rank's B was corrupted: only the full check can tell
            self._own_check = None
        elif self._own_check is not None:
            self.seed = None

    @abstractmethod
    def check_on_devices(self, check: RankCheck) -> Check:
        """The result of `check`, including how its operands reached the memory from which devices copy."""

    def check_on_host(self, suspects: Sequence[Suspect] = ()) -> Check:
        """The check on the host, from host memory."""
        with busy():
            if self._own_check is not None:
                own, self._own_check = self._own_check, None
                return own.judged(self._compared)
            check = HostCheck(self.team, self.plan, self.on_host(), self.threads, self.decision.multiplied_by)
            seed, self.seed = self.seed, None
            return check.result(seed, suspects)

    def on_host(self) -> list[RowView]:
        """This rank's views of A, B and C, in host memory."""
        return [self.views[key] for key in "ABC"]

    def checked(self) -> Check | None:
        """Check the last product, and repair it if asked; None if checks are off. A repair recomputes the product once, unless
        rows differ between nodes: nothing tells which are right."""
        if self.plan.check == "off":
            return None
        failed = self._checked_once()
        if failed.ok or self.settings.on_fault != "repair" or any(fault.code == "check-exchange" for fault in failed.faults):
            return failed
        timeline, began = self.team.timeline, time.perf_counter()
        repeat, timeline.repeat = timeline.repeat, -1  # its phases count as repair, not as a product's
        with limited_threads(self.threads):
            self.multiply()
            check = self._checked_once()
        timeline.repeat = repeat
        timeline.add("repair", began, time.perf_counter())
        if not check.ok:
            return replace(failed, faults=(*failed.faults, Fault(f"C is still wrong: {check.refusal()}")), undecided=False)
        lines = {fault.rank: f"{fault}; the product was computed once more" for fault in failed.faults}
        note = f"repaired; {check.note}" if check.note else "repaired"
        return replace(check, note=note, repaired=tuple(lines.values()), undecided=False)

    def _checked_once(self) -> Check:
        on_devices = self.device_check
        check = self.check_on_devices(on_devices) if on_devices is not None else None
        if check is not None and not check.undecided:
            return check
        with limited_threads(self.threads):
            by_host = self.check_on_host(on_devices.suspects() if on_devices is not None else ())
        return by_host if check is None else check.settled(by_host)
