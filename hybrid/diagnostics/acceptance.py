# SPDX-License-Identifier: MIT
"""The acceptance test: each device multiplies each row block in turn; products are checked, devices and links compared.

In round r of a rotation, rank i of P has row block (i + r) mod P of the same matrix. A faulty device is thus wrong with several
blocks, and faulty data of a block are wrong on several devices. Every rotation has new matrices.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from hybrid.arrays.root_operands import MatrixSource
from hybrid.core.problem import ITEM_SIZES, Problem, Span, Topology, record
from hybrid.core.settings import Settings
from hybrid.core.text import counted, ranges, rate_in_units
from hybrid.core.timeline import Spread
from hybrid.diagnostics import gpu_watch, links
from hybrid.diagnostics.finding import Finding, Unknown, note, ok, wrong
from hybrid.diagnostics.gpu_watch import GpuWatch, Watched
from hybrid.diagnostics.links import Measurements, reference_times
from hybrid.errors import CheckFailed
from hybrid.execution.session import agree, free_memory_of, session_of, take_inventory
from hybrid.planning.decision import Decision, RankPlacement
from hybrid.planning.plan import FreeMemory
from hybrid.planning.tiling import PlanRequest
from hybrid.ranks.launcher import has_come, heed
from hybrid.ranks.team import Team
from hybrid.runs.measured import RepeatedProduct
from hybrid.runs.operands import fill_rows
from hybrid.verification.check import Fault

FILLED = 0.6  # of the free memory: the plan's buffers, the check and other programs need the rest

Sizes = tuple[int, int, int]  # rows of A of a rank, l and m


@record
class Case:
    """Products of one size and type: each rank has `rows` rows of A, with `l` columns; B has `m` columns."""

    rows: int
    l: int
    m: int
    dtype: str

    def problem(self, ranks: int) -> Problem:
        return Problem(ranks * self.rows, self.l, self.m, self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype} {self.rows}×{self.l}×{self.m} a rank"


@record
class Level:
    """The products of a level."""

    number: int
    minutes: float  # unless --minutes is given
    sizes: dict[str, tuple[Sizes, ...]]  # by device; odd l and m are no multiples of a tile
    dtypes: tuple[str, ...]
    fills_memory: bool = False  # also multiply matrices that fill most of the memory


_SMALL: dict[str, tuple[Sizes, ...]] = {"cpu": ((128, 256, 256),), "cuda": ((4096, 8192, 8192),), "emulate": ((16, 32, 32),)}
_SEVERAL: dict[str, tuple[Sizes, ...]] = {
    "cpu": ((333, 501, 703), (1024, 1536, 1536)),
    "cuda": ((1001, 2003, 4001), (8192, 8192, 8192)),
    "emulate": ((17, 33, 35), (32, 64, 64)),
}
_BOTH = tuple(ITEM_SIZES)
LEVELS = {
    1: Level(1, 0.0, _SMALL, ("float64",)),
    2: Level(2, 5.0, _SEVERAL, _BOTH),
    3: Level(3, 15.0, _SEVERAL, _BOTH, fills_memory=True),
}

Pace = tuple[float, float]  # seconds of a round: for each operation of the multiplication, and for each element besides


def large_size(topology: Topology, free: Sequence[FreeMemory], dtype: str, seconds: float, pace: Pace) -> int:
    """The size of square matrices, divisible by the number of ranks, that fill FILLED of the memory; smaller if a round would
    take more than `seconds`. `free[rank]`: the rank's free memory."""
    item, ranks = ITEM_SIZES[dtype], topology.size
    elements = []
    hosts = [free[node[0]].host for node in topology.nodes]  # pretended nodes share a host
    for node, host in zip(topology.nodes, hosts, strict=True):
        room = min(free[rank].host_bytes for rank in node)
        elements.append(room / hosts.count(host) / (3 * item))  # A, B and C at the root's node
    users = [each.gpu_id for each in free]
    for each in free:
        if each.gpu_id:  # B, and this rank's rows of A and C
            elements.append(each.gpu_bytes / users.count(each.gpu_id) / ((1 + 2 / ranks) * item))
    size = int((FILLED * max(0.0, min(elements))) ** 0.5)
    while size > ranks and pace[0] * 2 * size**3 + pace[1] * 3 * size**2 > seconds:
        size = size * 31 // 32
    return max(ranks, size // ranks * ranks)


class _Normal(MatrixSource):
    """A matrix of normally distributed numbers: each rank generates the rows that it needs from the seed. The seed's matrix is
    rotated so that its row `first` comes first."""

    def __init__(self, shape: tuple[int, int], seed: int, matrix: str, first: int = 0) -> None:
        self.shape, self._seed, self._matrix, self._first = shape, seed, matrix, first

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Callable[[int], None]) -> None:
        lo = (rows.lo + self._first) % self.shape[0]
        whole = min(len(rows), self.shape[0] - lo)  # rows up to the last; the others are the first ones
        how: Any = {"fill": "normal", "seed": self._seed, "matrix": self._matrix, "threads": threads}
        fill_rows(into[:whole], Span(lo, lo + whole), **how, progress=progress)
        fill_rows(into[whole:], Span(0, len(rows) - whole), **how, progress=lambda more: progress(whole + more))


@record
class WrongProduct:
    """A product that failed its check, and one of the ranks blamed."""

    case: Case
    rotation: int
    rank: int | None  # whose rows are wrong; None if unknown
    block: int | None  # the rank's row block
    code: str  # of `hybrid.errors.CODES`
    text: str


class Acceptance:
    """The test on one rank. Every rank makes one and calls `run`; then the public attributes are the same on all."""

    def __init__(self, team: Team, level: Level, seconds: float, settings: Settings) -> None:
        self._team, self.level, self._limit, self._settings = team, level, seconds, settings
        self.doing = ""  # for the progress line
        self._began = time.monotonic()
        self._session = session_of(team)
        self._time_is_up = self.asked_to_end = False
        self._pace: Pace = 0.0, 0.0  # of the last round
        by_slurm, visible = (os.environ.get(name, "") for name in ("SLURM_GPUS_ON_NODE", "CUDA_VISIBLE_DEVICES"))
        with team.phase("agree", timed=False) as drawing:
            names = frozenset(filter(None, map(str.strip, visible.split(",")))) - {"-1", "NoDevFiles"}
            drawing.mine = secrets.randbits(48), int(by_slurm) if by_slurm.isdecimal() else 0, names
        self.seed = drawing.all[0][0]
        self.given_gpus = []  # by node
        for node in team.topology.nodes:
            _, counts, shown = zip(*(drawing.all[rank] for rank in node), strict=True)
            self.given_gpus.append(max(counts) or len(frozenset().union(*shown)))
        self.decision = self._decide(Problem(team.size, 1, 1, "float64"))
        self.names = [placement.name for placement in self.decision.placements]
        self._cases = [Case(*sizes, dtype) for sizes in level.sizes[self.decision.plan.device] for dtype in level.dtypes]
        # By case and rank: the seconds of each multiplication on the rank's device, without warm-ups.
        self.seconds: dict[Case, list[list[float]]] = {}
        self.wrong: list[WrongProduct] = []
        self.products = self.rotations = 0
        self.left_out: list[str] = []  # types without large products

    def run(self) -> None:
        """Run rotations of every case, at least one, until the time is up. Wrong products are recorded; any other failure is
        raised on all ranks."""
        team, placements = self._team, self.decision.placements
        heed(signal.SIGTERM)
        self.doing = "links"
        self.links = links.measure(team, [each.gpu for each in placements], [each.host for each in placements])
        mine = placements[team.rank]
        is_first = team.rank < min(mine.shares_gpu_with, default=team.size)  # of the ranks that share this GPU
        watch = GpuWatch(mine.gpu.uuid) if mine.gpu is not None and is_first else None
        self._rotate_all()
        with team.phase("report", timed=False) as reporting:
            reporting.mine = watch.stop() if watch else None, time.monotonic() - self._began
        self.watched: list[Watched | Unknown | None] = [each for each, _ in reporting.all]
        self.elapsed = reporting.all[0][1]

    def _rotate_all(self) -> None:
        while all(self._rotate(case) for case in self._cases):
            if not self.rotations and self.level.fills_memory:
                large = self._large_cases()
                self._cases += large
                if not all(self._rotate(case) for case in large):
                    return
            self.rotations += 1
            if self._time_is_up:
                return

    def _rotate(self, case: Case) -> bool:
        """All ranks multiply all row blocks of a case in turn. False if the test ends before."""
        ranks, rotation = self._team.size, self.rotations
        seed = self.seed + (rotation << 8) + self._cases.index(case)
        if rotation == 0:
            self.doing = f"{case}: warm-up"
            self._round(case, seed, 0, counted=False)
        for shift in range(ranks):
            self.doing = f"{case}: rotation {rotation + 1}, round {shift + 1} of {ranks}"
            if self.asked_to_end or (self._time_is_up and rotation):
                return False
            self._round(case, seed, shift, counted=True)
        return not self.asked_to_end

    def _round(self, case: Case, seed: int, shift: int, *, counted: bool) -> None:
        """One product of all ranks, multiplied several times."""
        team, began = self._team, time.monotonic()
        problem = case.problem(team.size)
        decision = self._decide(problem)
        a = _Normal((problem.n, problem.l), seed, "A", shift * case.rows)
        b = _Normal((problem.l, problem.m), seed, "B")
        try:
            result = RepeatedProduct(self._session, decision, (a, b), self._settings, repeat=3).outcome()
        except CheckFailed as failed:
            if not failed.on_all_ranks and team.size > 1:
                raise
            self._note_wrong(case, decision, shift, (Fault(str(failed), failed.code),))
            self.products += 1
            mine: list[float] = []
        else:
            self.products += result.repeats
            if result.check is not None and not result.check.ok:
                self._note_wrong(case, decision, shift, result.check.faults or (Fault(result.check.refusal()),))
            spent = team.timeline.seconds().items()
            mine = [seconds for (phase, repeat), seconds in spent if phase == "multiply" and repeat is not None]
        now = time.monotonic()
        with team.phase("agree", timed=False) as asking:
            asking.mine = mine, has_come(signal.SIGTERM), now - self._began >= self._limit, now - began
        if counted:
            of_ranks = self.seconds.setdefault(case, [[] for _ in range(team.size)])
            for own, (more, *_) in zip(of_ranks, asking.all, strict=True):
                own += more
        self.asked_to_end = any(asked for _, asked, *_ in asking.all)
        self._time_is_up = asking.all[0][2]
        multiplied, elements = max(sum(own) for own, *_ in asking.all), problem.bytes_of_matrices / problem.item_size
        self._pace = multiplied / problem.operations, max(0.0, asking.all[0][3] - multiplied) / elements

    def _note_wrong(self, case: Case, decision: Decision, shift: int, faults: tuple[Fault, ...]) -> None:
        """Record a wrong product, once for each rank that a fault names."""
        ranks, shares = self._team.size, decision.plan.shares
        blamed: dict[int | None, Fault] = {}
        for fault in faults:
            blamed.setdefault(blamed_rank(fault, [share.rows for share in shares]), fault)
        for rank, fault in blamed.items():
            block = None if rank is None else (shares[rank].rows.lo // case.rows + shift) % ranks
            self.wrong.append(WrongProduct(case, self.rotations, rank, block, fault.code, fault.text))

    def _decide(self, problem: Problem) -> Decision:
        with self._team.phase("agree", timed=False) as looking:
            looking.mine = take_inventory(self._session, self._settings)
        return agree(self._session, PlanRequest(problem), self._settings, looking.all)

    def _large_cases(self) -> list[Case]:
        """Square products that fill most of the memory, or are as large as the remaining time allows. A type is left out if its
        product would be smaller than the other cases."""
        team, gpu = self._team, self.decision.placements[self._team.rank].gpu
        with team.phase("agree", timed=False) as looking:
            free = free_memory_of(self._session, self._settings, gpu, now=True)
            looking.mine = free, self._limit - (time.monotonic() - self._began)
        left = looking.all[0][1]
        seconds = left / (len(ITEM_SIZES) * (team.size + 1))  # of each type a rotation and a warm-up
        # Any product takes as much as the tiny one of P rows.
        taken = max(map(self.decision.plan.bytes_on_node, range(len(team.topology.nodes))))
        free_of_ranks = [replace(each, host_bytes=each.host_bytes - taken) for each, _ in looking.all]
        sizes = [large_size(team.topology, free_of_ranks, dtype, seconds, self._pace) for dtype in ITEM_SIZES]
        least = max(case.l for case in self._cases)
        found = [Case(n // team.size, n, n, dtype) for n, dtype in zip(sizes, ITEM_SIZES, strict=True) if n > least]
        self.left_out = [dtype for dtype in ITEM_SIZES if dtype not in [case.dtype for case in found]]
        return found


def blamed_rank(fault: Fault, rows_of_ranks: list[Span]) -> int | None:
    """The rank whose device was wrong, or that has the wrong row; None if neither is known."""
    if fault.rank is not None or (row := fault.row) is None:
        return fault.rank
    return next((rank for rank, rows in enumerate(rows_of_ranks) if rows.lo <= row < rows.hi), None)


SLOW = 1.1  # times the median of all
SHORTEST = 0.005  # seconds: operating system noise distorts shorter multiplications
# By the beginning of a GPU's name: operations a second in each type, and bytes a second of the host link, as measured in
# docs/measured/accept-h200.jsonl, precision-h100.jsonl and hosts-h100.jsonl.
MODELS: dict[str, tuple[dict[str, float], float]] = {
    "NVIDIA H200": ({"float64": 56.7e12, "float32": 49.4e12}, 54.8e9),
    "NVIDIA H100 80GB HBM3": ({"float64": 50.7e12, "float32": 49.9e12}, 54e9),
}
FAR = 2.5  # times as long as GPUs of this model take


def judge(test: Acceptance, expected_gpus: Sequence[int]) -> list[Finding]:
    """The findings: one for each problem of a product, rank, link or GPU, and one for each subject without problems."""
    sharing = {placement.rank for placement in test.decision.placements if placement.shares_gpu_with}
    without = (
        f"no large {' and '.join(test.left_out)}: neither time nor memory was left for more than the other sizes: more --minutes"
    )
    return [
        *_unused_gpus(test, expected_gpus),
        *judge_products(test.wrong, test.names, test.products),
        *([note("products", without, code="left-out")] if test.left_out else []),
        *judge_speeds(test.seconds, test.names, sharing),
        *judge_models(test.seconds, test.decision.placements, test.links, sharing),
        *links.judge_node_links(test.links.node_links, SLOW),
        *links.judge(test.links, SLOW),
        *gpu_watch.judge(test.watched, test.names, f"no GPU is used ({test.decision.device_reason})"),
    ]


def judge_products(refused: Sequence[WrongProduct], names: Sequence[str], products: int) -> list[Finding]:
    """One line for each rank that was wrong, with its row blocks, and one for wrong products without a rank to blame."""
    if not refused:
        return [ok("products", f"{counted(products, 'product')} checked, all right")]
    found = []
    for rank in sorted({each.rank for each in refused}, key=lambda rank: -1 if rank is None else rank):
        own = [each for each in refused if each.rank == rank]
        blocks = sorted({each.block for each in own if each.block is not None})
        where = f"{counted(len(own), 'wrong product')} of {products}" + (f", with row block {ranges(blocks)}" if blocks else "")
        who = "no single rank" if rank is None else names[rank]
        code, remedy = "wrong-device", "take its device, or its host's memory, out of use and test again"
        if all(each.code == "check-exchange" for each in own):
            code, remedy = "check-exchange", "what ranks sent did not arrive: look at the network between the nodes, and at MPI"
        elif rank is None or (len(blocks) == 1 and len({each.rank for each in refused if each.block in blocks}) > 1):
            code = "wrong-rows"
            remedy = "the same rows are wrong on several ranks: look at the host's memory and at the link first"
        found.append(wrong("products", f"{who}: {where}; first of {own[0].case}: {own[0].text}", remedy, code=code))
    return found


def _unused_gpus(test: Acceptance, expected: Sequence[int]) -> list[Finding]:
    decision, found = test.decision, []
    for node, wanted in zip(decision.plan.topology.nodes, expected, strict=True):
        gpus = [decision.placements[rank].gpu for rank in node]
        used = len({gpu.uuid for gpu in gpus if gpu is not None})
        if used < wanted:
            why = "" if used else f" ({decision.device_reason})"
            text = f"{decision.placements[node[0]].host}: {used} of {counted(wanted, 'GPU')} used{why}"
            remedy = "start a rank for each; python -m hybrid.doctor tells why a rank cannot use one"
            found.append(wrong("gpus", text, remedy, code="gpus-unused"))
    if not found and any(expected):
        found = [ok("gpus", f"all {counted(sum(expected), 'GPU')} used")]
    return found


def judge_speeds(
    seconds: Mapping[Case, Sequence[Sequence[float]]], names: Sequence[str], sharing: Collection[int] = ()
) -> list[Finding]:
    """One line for each slow rank. `seconds[case][rank]`: of each product. `sharing`: ranks that share a GPU, perhaps unequally.

    A rank is slow in a type if at least half of its products of that type, of all sizes together, took more than SLOW times the
    reference. A short disturbance, which affects one size only, does not count.
    """
    if len(names) == 1:
        return [ok("speed", "not compared: there is one rank")]
    ratios: dict[str, list[list[float]]] = {}  # by type and rank
    for case, of_ranks in seconds.items():
        medians = {rank: Spread.of(own).median for rank, own in enumerate(of_ranks) if own}
        if len(medians) == len(names) and max(medians.values()) >= SHORTEST:
            references = reference_times(medians)
            of_type = ratios.setdefault(case.dtype, [[] for _ in names])
            for rank, own in enumerate(of_ranks):
                of_type[rank] += [each / references[rank] for each in own]
    if not ratios:
        text = f"not compared: no multiplication took {1000 * SHORTEST:.0f} ms (a higher --level has longer ones)"
        return [note("speed", text, code="too-short")]
    than = "the median of all ranks" if len(names) > 2 else "the other rank, the only one to compare it with"
    found = []
    for rank, name in enumerate(names):
        medians_of_types = {dtype: Spread.of(of_type[rank]).median for dtype, of_type in ratios.items()}
        if slow := {dtype: ratio for dtype, ratio in medians_of_types.items() if ratio > SLOW}:
            by = ", ".join(f"{100 * (ratio - 1):.0f} % with {dtype}" for dtype, ratio in slow.items())
            count = sum(len(of_type[rank]) for of_type in ratios.values())
            text = f"{name}: slow, takes longer than {than}, by {by} (median of {counted(count, 'product')})"
            remedy = "see its clock, temperature and power, its threads and cores, and what else runs there"
            found.append((note if rank in sharing else wrong)("speed", text, remedy, code="slow-rank"))
    limit = f"no rank takes {100 * (SLOW - 1):.0f} % longer than {than.partition(',')[0]}"
    return found or [ok("speed", f"{limit} ({', '.join(ratios)})")]


def judge_models(
    seconds: Mapping[Case, Sequence[Sequence[float]]],
    placements: Sequence[RankPlacement],
    measured: Measurements,
    sharing: Collection[int] = (),
) -> list[Finding]:
    """One line for each rank whose GPU or link is FAR times slower, even in its best case, than MODELS says of its model."""
    found, links_of = [], {link.uuid: link.alone for link in measured.links}
    medians = {case: [Spread.of(own).median for own in of_ranks] for case, of_ranks in seconds.items() if all(of_ranks)}
    for placement in placements:
        gpu = placement.gpu
        model = next((name for name in MODELS if gpu and gpu.name.startswith(name) and "MIG" not in gpu.name), None)
        if gpu is None or model is None:
            continue
        told, (rates, of_link) = note if placement.rank in sharing else wrong, MODELS[model]
        for dtype, usual in rates.items():
            own = {case: of[placement.rank] for case, of in medians.items() if case.dtype == dtype}
            reached = [2 * case.rows * case.l * case.m / each for case, each in own.items() if each >= SHORTEST]
            if (best := max(reached, default=usual)) * FAR < usual:
                slow = f"slow, {rate_in_units(best, 'F')} in {dtype}; this model has {rate_in_units(usual, 'F')}"
                remedy = "see its clock, temperature and power, and what else runs there"
                found.append(told("speed", f"{placement.name}: {slow}", remedy, code="slow-rank"))
        if (least := min(links_of.get(gpu.uuid, {"": of_link}).values())) * FAR < of_link:
            slow = f"slow, {rate_in_units(least, 'B')}; this model has {rate_in_units(of_link, 'B')}"
            remedy = "see the link's width and generation (nvidia-smi -q), and which cores the rank runs on"
            found.append(told("gpu links", f"{placement.name}: {slow}", remedy, code="slow-link"))
    return found


def as_record(test: Acceptance, findings: Sequence[Finding]) -> dict[str, Any]:
    """The record for `--json`."""
    finished = {case: of_ranks for case, of_ranks in test.seconds.items() if all(of_ranks)}
    return {
        "command": "accept",
        **links.as_record(findings, test.decision.placements, test.links),
        "level": test.level.number,
        "device": test.decision.plan.device,
        "products": test.products,
        "rotations": test.rotations,
        "left_out": test.left_out,
        "seconds": test.elapsed,
        "seed": test.seed,
        "wrong": [asdict(each) for each in test.wrong],
        "multiply": [{**asdict(case), "ranks": [vars(Spread.of(own)) for own in of]} for case, of in finished.items()],
        "watched": [{"why_not": each.reason} if isinstance(each, Unknown) else each and asdict(each) for each in test.watched],
    }
