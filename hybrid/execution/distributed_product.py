# SPDX-License-Identifier: MIT
"""Products of RowBlocks and Block2Ds, whose elements stay where they are: every rank keeps its part of A, B and C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hybrid.arrays.fit import Shares, problem_of_blocks, problem_of_rows
from hybrid.arrays.gemm import Gemm, ProductType
from hybrid.arrays.interop import as_rows, await_callers_work, copy_back, empty_beside, on_host, to_device_of
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.core.timeline import Timeline
from hybrid.errors import DoesNotFit
from hybrid.execution.between_nodes import OnGrid, gather_b
from hybrid.execution.calls import exactly
from hybrid.execution.checked_run import CheckedRun
from hybrid.execution.product import element_types
from hybrid.execution.rank_run import RankRun
from hybrid.host.memory import RowView
from hybrid.host.threads import limited_threads
from hybrid.kernels.catalogue import elements_of
from hybrid.planning.check_layout import GROUP_COLUMNS
from hybrid.planning.tiling import OperandLocation, PlanRequest
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.selection.decision import Decision, Inventory
from hybrid.selection.session import Session, agree
from hybrid.transport.base import RankMatrices
from hybrid.verification.check import Check, Suspect, most_exact
from hybrid.verification.copies import verify_gathered
from hybrid.verification.freivalds import verify

if TYPE_CHECKING:
    from hybrid.execution.repair import Recomputed
    from hybrid.verification.check import WrongParts


def decide_on_distributed(
    session: Session, shares: Sequence[Shares], inventories: Sequence[Inventory], settings: Settings, gemm: Gemm
) -> tuple[ProductType, bool, Settings, Decision]:
    """The types of the product, whether integers that lie on a GPU stay there, the settings, and the decision. Every rank calls
    it, with what all ranks have.

    Integers that lie on GPUs stay there if there is room for all that is made of them. Else they go through the host's memory.
    """
    on_gpus = settings.device in ("auto", "cuda") and any(any(each.on_gpu) for each in shares)
    if shares[0].types.exact is not None and on_gpus:
        try:
            found = _decided(session, shares, inventories, settings, gemm, stays=True)
        except DoesNotFit:
            found = None
        if found is not None and found[3].plan.device == "cuda":
            return found
    return _decided(session, shares, inventories, settings, gemm, stays=False)


def _decided(
    session: Session,
    shares: Sequence[Shares],
    inventories: Sequence[Inventory],
    settings: Settings,
    gemm: Gemm,
    *,
    stays: bool,
) -> tuple[ProductType, bool, Settings, Decision]:
    """What `decide_on_distributed` returns."""
    types = shares[0].types
    gemm = gemm.of_type(types)
    if types.exact is not None and all(each.types == types for each in shares):  # `_request` refuses others
        types = types.bounded(shares[0].depth, [each.largest for each in shares], gemm, _most(settings) if stays else None)
    if not stays:
        settings = exactly(settings, types)
    elif settings.precision != "native":  # sums stay below `most`, and then products from remainders are exact as well
        settings = replace(settings, precision="auto")
    made_there = types.exact if stays else None
    on_gpus = tuple(each.bytes_on_gpu(made_there, combines=gemm.combines) for each in shares)
    on_hosts = tuple(
        each.copied_bytes + types.bytes_beside(each.a[0] * each.b[1]) * (not (made_there and each.on_gpu[0])) for each in shares
    )
    decision = agree(session, _request(shares, types, on_hosts, on_gpus), settings, inventories)
    return types, stays, settings, decision


def _most(settings: Settings) -> int:
    """The largest sums of products of integers on a GPU. With larger ones the host would have to check a product that the GPU
    has, for which it would copy all of it: several products of smaller numbers take less time."""
    return most_exact(GROUP_COLUMNS) if settings.check == "on" else (1 << 53) - 1


def _request(shares: Sequence[Shares], types: ProductType, on_hosts: tuple[int, ...], on_gpus: tuple[int, ...]) -> PlanRequest:
    """What is to be decided on. `on_hosts`, `on_gpus`: the bytes that each rank takes beside its parts. UsageError if the parts
    do not fit together."""
    problem, placement = problem_of_blocks(shares) if shares[0].whole else problem_of_rows(shares)
    return PlanRequest(
        replace(problem, dtype=types.computed).with_operands("" if shares[0].whole else types.short_operands),
        operands=OperandLocation.BLOCKS_2D if shares[0].whole else OperandLocation.ROW_BLOCKS,
        placed=placement,
        besides=on_hosts,
        besides_on_gpu=on_gpus if any(on_gpus) and not shares[0].whole else (),
    )


def run_distributed_product(session: Session, decision: Decision, a: Any, b: Any, settings: Settings) -> tuple[Any, Check | None]:
    """This rank's part of C, on the device where its part of A lies, and what the check found; None where nothing is checked.
    Every rank calls it."""
    team, plan = session.team, decision.plan
    team.timeline = Timeline()
    with limited_threads(decision.placements[team.rank].threads.count):
        c, check = _DistributedProduct(session, decision, a, b, settings).result()
        if plan.device != "cuda" or plan.grid_layout is not None:
            with team.phase("scatter"):
                c = to_device_of(a, c)
        return c, check


class _DistributedProduct(CheckedRun):
    """A product of which each rank keeps its part."""

    def __init__(self, session: Session, decision: Decision, a: Any, b: Any, settings: Settings) -> None:
        super().__init__(session, decision, settings)
        plan, layout = self.plan, self.plan.grid_layout
        device = plan.device if layout is None else "cpu"  # a grid's parts travel from host to host
        height, width = layout.placement.c[self.team.rank].shape if layout else (len(self.share.rows), plan.problem.m)
        with self.team.phase("scatter"), busy():
            self._a, self._b = (
                elements_of(as_rows(array, plan.problem.operand_dtype, device=device, threads=self.threads)) for array in (a, b)
            )
            self._c = empty_beside(self._a, (height, width), plan.problem.dtype)
            await_callers_work(self._a, self._b, self._c)
        self._grid = OnGrid(self.team, plan, {"A": self._a, "B": self._b, "C": self._c}) if layout else None
        self._all_of_b = RowView(self._b, self.share.b_rows) if plan.own_rows_suffice else self._gathered_b()

    def result(self) -> tuple[Any, Check | None]:
        """This rank's part of C, and the check."""
        run = self.run
        try:
            self.multiply()
            return self._c, self.checked()
        except BaseException:
            run.abandon()
            raise

    def set_up(self) -> RankRun:
        def nobody(phase: str, done: int, of: int) -> None:
            """Is told of the progress."""

        if self._grid is not None:
            return self._grid.run(self.session, self.decision, self.settings, nobody)
        matrices = RankMatrices(self._a, self._all_of_b, self._c)
        read_and_written = [self._a, self._all_of_b.array, self._c]
        return RankRun(self.session, self.decision, matrices, read_and_written, self.settings, nobody)

    def multiply(self) -> None:
        with self.team.phase("scatter", timed=False):
            self.run.make_ready()
        self.run.multiply()
        if self._grid is not None:
            self.run.gather()

    def check_on_devices(self) -> Check:
        check = self.run.check()
        if not self.plan.own_rows_suffice:
            verify_gathered(self.team, self.share.b_rows, on_host(self._b), self._all_of_b, self.threads)
        return check

    def check_on_host(self, wrong: WrongParts | None, suspects: Sequence[Suspect] = ()) -> Check:
        if self._grid is not None and self.plan.operands is OperandLocation.BLOCKS_2D:
            return self._grid.verify(self.decision, self.threads)
        a, b, c = self._on_host()
        return verify(self.team, self.plan, a, b, c, self.threads, wrong, suspects, self.decision.multiplied_by)

    def compute_again(self, wrong: WrongParts) -> list[Recomputed]:
        from hybrid.execution.repair import recompute

        a, b, c = self._on_host()
        done = recompute(self.team, self.plan, (a, b, c), wrong, self.threads)
        with self.team.phase("repair"):
            copy_back(c.array, self._c)
        return done

    def _on_host(self) -> list[RowView]:
        """This rank's rows in host memory."""
        share = self.share
        with self.team.phase("check", timed=False), busy():
            placed = ((self._a, share.rows), (self._b, share.b_rows), (self._c, share.rows))
            return self.in_numbers([RowView(on_host(array), rows) for array, rows in placed])

    def _gathered_b(self) -> RowView:
        """All of B, in memory that the node's ranks share."""
        team, plan = self.team, self.plan
        rows, columns = {"B": Span(0, plan.problem.l)}, {"B": plan.problem.m}
        b = make_shared_matrices(team, rows, columns, element_types(plan.problem))["B"]
        with team.phase("scatter"), busy():
            b[self.share.b_rows][...] = on_host(self._b)
        gather_b(team, plan, b, self.settings)
        return b
