# SPDX-License-Identifier: MIT
"""When a GPU is asked for its free memory: for what is more than the ranks hold of it, and by all ranks together."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import hybrid
from hybrid.core import ttl_cache
from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.devices.cuda_gpus import Gpu
from hybrid.errors import DoesNotFit
from hybrid.plan.planning import make_plan
from hybrid.plan.request import OperandLocation, RowBlocks
from hybrid.ranks.team import Team
from hybrid.ranks.world import team_of
from hybrid.selection import agreement, decision, inventory
from hybrid.selection.agreement import agree
from hybrid.selection.decision import ProductRequest, Unknown
from hybrid.selection.inventory import SPARE_GPU_BYTES, free_memory_of, take_inventory
from hybrid.selection.session import Session, session_of

MiB = 1 << 20
SMALL, LARGE = Problem(100, 100, 100), Problem(1000, 1000, 1000)


class Machine:
    """Made-up GPUs, one a rank, that count how often they are asked."""

    def __init__(self, monkeypatch, team=None):
        self.session = Session(team or Team())
        self.free, self.pooled, self.asked = 1000 * MiB, 0, 0
        self.gpu = Gpu(0, f"GPU-{self.session.team.rank}", "made up")
        monkeypatch.setattr(inventory, "usable_gpus", lambda: [self.gpu])
        monkeypatch.setattr(inventory, "free_bytes", self._ask)
        monkeypatch.setattr(inventory, "pooled_bytes", lambda gpu: self.pooled)

    def _ask(self, gpu):
        self.asked += 1
        return self.free

    def hold(self, size, for_check=0):
        """From the product before."""
        held = {"reserved": size, "reserved_for_check": for_check}
        self.session.rank_device = SimpleNamespace(gpu=self.gpu, **held, memory_version=0)

    def plan(self, problem, resident=False, check="off", **settings):
        session, team, asked = self.session, self.session.team, Settings(check=check, **settings)
        with team.phase("agree", timed=False) as looking:
            looking.mine = take_inventory(session, asked)
        rows = [tuple(team.topology.rows_of_rank(rank, length) for rank in range(team.size)) for length in (problem.n, problem.l)]
        location = OperandLocation.ROW_BLOCKS if resident else OperandLocation.NODE_SHARED
        request = ProductRequest(problem, location, row_blocks=RowBlocks(*rows) if resident else None)
        plan = agree(session, request, asked, looking.all).plan
        assert plan.device == "cuda"
        return plan


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_a_product_like_the_one_before_asks_no_gpu(machine):
    first = machine.plan(LARGE)
    assert machine.asked == 1
    machine.hold(first.bytes_on_gpu(0))
    machine.free = 0
    assert machine.plan(LARGE) == first
    assert machine.plan(SMALL).shares[0].holds_all
    assert machine.asked == 1


def test_no_plan_is_made_for_less_memory_than_there_is(machine, monkeypatch):
    """Nor before anybody knows how much there is: the search for a plan out of core takes as long as many a product."""
    planned = []
    monkeypatch.setattr(decision, "make_plan", lambda asked: planned.append(asked) or make_plan(asked))
    machine.plan(LARGE)
    assert [asked.device_memory for asked in planned] == [0] * len(planned) != []


def test_what_is_held_for_the_check_is_used_by_the_next_check(machine):
    first = machine.plan(LARGE, check="on")
    assert first.check == "device"
    of_check = first.bytes_on_gpu(0) - machine.plan(LARGE).bytes_on_gpu(0)
    assert of_check == first.bytes_of_device_check(0) > 0
    before = machine.asked
    machine.hold(first.bytes_of_buffers(0), for_check=of_check)
    assert free_memory_of(machine.session, Settings(), machine.gpu).gpu_reserved == first.bytes_on_gpu(0)
    assert machine.plan(LARGE, check="on") == first
    assert machine.asked == before
    machine.hold(first.bytes_of_buffers(0), for_check=of_check - 1)
    assert machine.plan(LARGE, check="on") == first
    assert machine.asked == before + 1


def test_a_larger_product_is_cut_to_what_is_free_by_then(machine):
    machine.hold(machine.plan(SMALL).bytes_on_gpu(0))
    machine.free = 10 * MiB
    assert 5 * MiB < machine.plan(LARGE).bytes_on_gpu(0) < 10 * MiB
    assert machine.asked == 2
    machine.free = 0
    machine.hold(0)
    with pytest.raises(DoesNotFit, match="on the GPU of rank 0") as refused:
        machine.plan(LARGE)
    assert refused.value.__context__ is None


def test_what_is_held_does_not_keep_a_cut_product_from_what_has_become_free(machine):
    machine.free = 10 * MiB
    tiling = machine.plan(LARGE)
    machine.hold(tiling.bytes_on_gpu(0))
    machine.free = 1000 * MiB
    assert machine.plan(LARGE).shares[0].holds_all


def test_no_more_is_used_than_the_settings_allow_though_more_is_held(machine):
    machine.hold(1000 * MiB)
    assert machine.plan(LARGE, gpu_memory=5 * MiB).bytes_on_gpu(0) <= 5 * MiB
    assert machine.asked == 0


def test_c_that_stays_on_the_gpu_comes_from_what_its_pool_has(machine):
    machine.hold(machine.plan(LARGE, resident=True).bytes_on_gpu(0))
    machine.pooled = LARGE.bytes(1000, 1000)
    machine.plan(LARGE, resident=True)
    assert machine.asked == 1
    machine.pooled -= 1
    machine.plan(LARGE, resident=True)
    assert machine.asked == 2


def test_what_is_held_is_given_back_for_c_once_the_gpu_has_been_asked(machine, monkeypatch):
    given_back = []
    monkeypatch.setattr(Session, "release_device", lambda session: given_back.append(machine.asked))
    machine.hold(machine.plan(LARGE, resident=True).bytes_on_gpu(0))
    machine.free = 2 * MiB
    machine.plan(LARGE, resident=True)
    assert given_back == [2]


def test_what_is_free_and_what_is_held_may_be_used_but_for_a_spare(machine):
    machine.hold(600 * MiB)
    room = free_memory_of(machine.session, Settings(), machine.gpu, now=True)
    assert room.gpu_reserved == 600 * MiB
    assert room.gpu_bytes == 1600 * MiB - 200 * MiB, "an eighth"
    machine.free = 100_000 * MiB
    assert free_memory_of(machine.session, Settings(), machine.gpu, now=True).gpu_bytes == 100_600 * MiB - SPARE_GPU_BYTES
    assert free_memory_of(machine.session, Settings(gpu_memory=5 * MiB), machine.gpu, now=True).gpu_bytes == 5 * MiB
    another = free_memory_of(machine.session, Settings(), Gpu(1, "GPU-another", "made up"), now=True)
    assert another.gpu_reserved == 0
    assert another.gpu_bytes == 100_000 * MiB - SPARE_GPU_BYTES


def test_a_gpu_that_nobody_worked_on_is_asked(machine):
    machine.hold(1000 * MiB)
    machine.gpu = Gpu(1, "GPU-another", "made up")
    machine.plan(SMALL)
    assert machine.asked == 1


@pytest.mark.mpi(min_size=2)
def test_ranks_that_share_a_gpu_share_its_memory(comm, monkeypatch):
    own = comm.Dup()
    machine = Machine(monkeypatch, Team(own))
    machine.gpu, machine.free = Gpu(0, "GPU-shared", "made up"), 8 * MiB * comm.size
    try:
        assert 3 * MiB < machine.plan(LARGE).bytes_on_gpu(comm.rank) <= 7 * MiB
    finally:
        machine.session.team.free()
        own.Free()


@pytest.mark.mpi(min_size=2)
def test_all_ranks_ask_when_one_holds_too_little(comm, monkeypatch):
    own = comm.Dup()
    machine = Machine(monkeypatch, Team(own))
    try:
        sizes = comm.allgather(machine.plan(LARGE).bytes_on_gpu(comm.rank))
        machine.hold(max(sizes))
        machine.plan(LARGE)
        assert machine.asked == 1
        machine.hold(max(sizes) if comm.rank else 0)
        machine.free = 1000 * MiB if comm.rank else 2 * MiB
        assert len(set(comm.allgather(machine.plan(LARGE)))) == 1
        assert machine.asked == 2
    finally:
        machine.session.rank_device = None
        machine.session.team.free()
        own.Free()


@pytest.fixture
def decided(monkeypatch):
    """Each decision that was made, and not remembered."""
    made, original = [], agreement.decide

    def noted(machine, *asked):
        decision = original(machine, *asked)
        if not isinstance(decision, Unknown):
            made.append(decision)
        return decision

    monkeypatch.setattr(agreement, "decide", noted)
    monkeypatch.setattr(ttl_cache, "SECONDS_TO_LIVE", 1000.0)
    return made


@pytest.mark.mpi
def test_the_last_decision_serves_the_same_product_again_unless_a_rank_has_forgotten_it(comm, decided):
    own = comm.Dup()

    def product(n, **how):
        a, b = (np.ones((n, n)), np.ones((n, n))) if own.rank == 0 else (None, None)
        c = hybrid.multiply(a, b, comm=own, **how)
        assert own.rank != 0 or (c == n).all()
        return len(decided)

    product(6)  # makes the rank device
    product(6)
    before = product(6)
    assert product(6) == before
    assert product(7) == before + 1
    assert product(7, check=False) == before + 2
    assert product(7) == before + 3
    session = session_of(team_of(own))
    if own.rank == own.size - 1:
        session.rank_device.drain()
    assert product(7) == before + 4
    assert product(7) == before + 4
    if own.rank == own.size - 1:  # as if it had failed alone in between, and remembered an earlier decision
        session.remembered = replace(session.remembered, serial=session.remembered.serial + 1)
    assert product(7) == before + 4 + (own.size > 1)
    own.Free()


def test_a_second_choice_is_decided_on_though_the_first_made_all_ranks_forget(machine):
    """Integers go through the host's memory where they do not fit on the GPU: two decisions from the same inventories."""
    machine.hold(machine.plan(SMALL).bytes_on_gpu(0))
    machine.plan(SMALL)
    request, asked = ProductRequest(SMALL, OperandLocation.NODE_SHARED), Settings(check="off")
    inventories = [take_inventory(machine.session, asked)]
    assert inventories[0].remembers
    first, machine.session.remembered = agree(machine.session, request, asked, inventories), None  # as `release_device` does
    assert agree(machine.session, request, asked, inventories) == first


def test_a_decision_for_which_a_gpu_was_asked_is_made_again(machine, decided):
    machine.hold(0)
    machine.plan(LARGE)
    machine.plan(LARGE)
    assert machine.asked == len(decided) == 2
    machine.hold(machine.plan(LARGE).bytes_on_gpu(0))
    machine.plan(LARGE)
    machine.plan(LARGE)
    assert machine.asked == 3
    assert len(decided) == 4
