# SPDX-License-Identifier: MIT
"""Products as large as memory allows, multiplied and checked: in core as the lecture's programs do, and by the runner."""

import secrets
from collections.abc import Callable, Iterator
from functools import partial
from math import isqrt
from typing import Any

import numpy as np

from experiments.common import cli, cuda, records
from hybrid.core.problem import ITEM_SIZES, Problem
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, pieces
from hybrid.errors import CheckFailed, DoesNotFit
from hybrid.host.memory import available_host_bytes
from hybrid.kernels.catalogue import Kernel
from hybrid.planning.tiling import PlanRequest
from hybrid.ranks.team import Team
from hybrid.runs.measured import run_product
from hybrid.runs.operands import GeneratedElements, TypedProduct, fill_rows
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session, agree, take_inventory

HOST_ENDS = "the host's memory ends it"
PIECE_BYTES = 256 << 20  # of a matrix that the host holds beside the device's
_THREADS = 16  # that make numbers
_OF_FREE_HOST_MEMORY = 7 / 8  # what is free changes between the search and the product


def theoretical(memory: int, dtype: str) -> int:
    """The largest N of which three N×N matrices are no more than `memory` bytes."""
    return isqrt(memory // (3 * ITEM_SIZES[dtype]))


def last_that(works: Callable[[int], bool], most: int) -> int:
    """The largest size up to `most` that works, where all smaller ones do: from above in growing steps, then by halves. Or 0."""
    good, bad, step = most, most + 1, 1
    while good > 0 and not works(good):
        good, bad, step = max(0, good - step), good, 2 * step
    while bad - good > 1:
        middle = (good + bad) // 2
        if works(middle):
            good = middle
        else:
            bad = middle
    return good


def allocates(runtime: cuda.CudaRuntime, dtype: str, n: int) -> bool:
    """Whether the device gives memory for three N×N matrices."""
    try:
        for _ in range(3):
            runtime.allocate(n, n, dtype)
    except cuda.CallFailed:
        return False
    finally:
        runtime.release()
    return True


def run_in_core(runtime: cuda.CudaRuntime, kernel: Kernel, n: int, dtype: str) -> float:
    """Seconds of the kernel on three N×N matrices of the device, made and checked piece by piece.

    CallFailed where the memory ends, CheckFailed for a wrong product. The check is exact: all numbers are integers.
    """
    rows = max(1, PIECE_BYTES // (n * ITEM_SIZES[dtype]))
    seed, x = secrets.randbits(63), np.random.default_rng().integers(1, 8, n).astype(np.float64)
    spans = list(pieces(Span(0, n), rows))

    def load(matrix: str, target: Any, vector: np.ndarray) -> np.ndarray:
        """Fill A or B on the device; its product with the vector."""
        product = np.empty(n)
        for span in cli.shown(spans, f"N = {n}, {matrix}"):
            part = np.empty((len(span), n), dtype)
            fill_rows(part, span, fill="lecture", seed=seed, matrix=matrix, threads=_THREADS)
            runtime.copy(target[span.slice], part)
            product[span.slice] = part.astype(np.float64, copy=False) @ vector
        return product

    try:
        on_a, on_b, on_c = (runtime.allocate(n, n, dtype) for _ in range(3))
        expected = load("A", on_a, load("B", on_b, x))
        runtime.poison(on_c)
        begin = runtime.event()
        runtime.launch(kernel, on_a, on_b, on_c)
        seconds = runtime.seconds(begin, runtime.event())
        for span in cli.shown(spans, f"N = {n}, C"):
            part = np.empty((len(span), n), dtype)
            runtime.copy(part, on_c[span.slice])
            if not np.array_equal(part.astype(np.float64, copy=False) @ x, expected[span.slice]):
                raise CheckFailed(f"kernel {kernel.name} is wrong for {dtype} {n}×{n}, in rows {span}")
        return seconds
    finally:
        runtime.release()


def largest_in_core(runtime: cuda.CudaRuntime, kernel: Kernel, dtype: str, most: int) -> tuple[int, float]:
    """The largest N up to `most` that the kernel multiplies in core, and its seconds. DoesNotFit where there is none."""
    run_in_core(runtime, kernel, 1, dtype)  # its code takes memory, too
    seconds: dict[int, float] = {}

    def multiplies(n: int) -> bool:
        try:
            seconds[n] = run_in_core(runtime, kernel, n, dtype)
        except cuda.CallFailed:
            return False
        return True

    n = last_that(multiplies, last_that(partial(allocates, runtime, dtype), most))
    if not n:
        raise DoesNotFit(f"no three matrices of {dtype} fit beside kernel {kernel.name}")
    return n, seconds[n]


class RunnerAlone:
    """The runner on one rank whose device has so much memory: a GPU, or a CPU that copies as a GPU does."""

    def __init__(self, device: str, memory: int) -> None:
        self._memory = memory
        where = {"device": "cuda" if device == "cuda" else "cpu", "staged": True, "gpu_memory": memory}
        host = Settings.gather({}).host_memory or int(_OF_FREE_HOST_MEMORY * available_host_bytes())
        self._settings = Settings.gather({**where, "host_memory": host, "check": True})
        self._session = Session(Team())

    def lines(self, dtype: str, most: int, times: float) -> Iterator[records.Line]:
        """The largest N of which all is resident, then the largest up to times·most. Nothing where the host cannot hold more."""
        limit = int(times * most)
        resident = self._largest(dtype, most, lambda decision: decision.plan.shares[0].holds_all)
        if resident:
            by_host = resident.plan.problem.n < most and self._decision(resident.plan.problem.n + 1, dtype) is None
            yield {**self._line("resident", resident), "ended_by": HOST_ENDS if by_host else ""}
        there = self._largest(dtype, limit, lambda _: True)
        if there and (not resident or there.plan.problem.n > resident.plan.problem.n):
            by_times = there.plan.problem.n == limit
            yield {**self._line("out of core", there), "ended_by": f"--times {times:g} ends it" if by_times else HOST_ENDS}
        self._session.release_device()

    def _largest(self, dtype: str, most: int, accepted: Callable[[Decision], bool]) -> Decision | None:
        """The product of the largest N up to `most` that fits and is accepted."""
        decisions: dict[int, Decision] = {}

        def fits(n: int) -> bool:
            decision = self._decision(n, dtype)
            if decision is None or not accepted(decision):
                return False
            decisions[n] = decision
            return True

        return decisions.get(last_that(fits, most))

    def _line(self, part: str, decision: Decision) -> records.Line:
        """Of its product."""
        problem = decision.plan.problem
        shapes = {"A": (problem.n, problem.l), "B": (problem.l, problem.m)}
        made = (GeneratedElements(shape, "lecture", 0, key, np.dtype(problem.dtype)) for key, shape in shapes.items())
        outcome = run_product(self._session, decision, *TypedProduct.of(*made, "").sources(), self._settings)
        if outcome.check is None or not outcome.check.ok:
            raise CheckFailed(f"the runner's product of {problem.dtype} {problem.n}×{problem.l} is wrong")
        return {"part": part, "n": problem.n, "kernel": decision.kernel.name, "seconds": outcome.total.median}

    def _decision(self, n: int, dtype: str) -> Decision | None:
        """None where it does not fit."""
        try:
            inventory = [take_inventory(self._session, self._settings)]
            return agree(self._session, PlanRequest(Problem(n, n, n, dtype)), self._settings, inventory)
        except DoesNotFit:
            return None
