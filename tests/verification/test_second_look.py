# SPDX-License-Identifier: MIT
"""Sums that look wrong on a device, while all others have been judged: only these are looked at again, if they are right."""

from __future__ import annotations

import numpy as np
import pytest
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.devices.buffers import Buffers
from hybrid.devices.cpu import CpuDevice
from hybrid.execution.pipeline import run_share
from hybrid.host.row_view import RowView
from hybrid.plan.check_layout import check_layout
from hybrid.ranks.team import Team
from hybrid.transport.base import RankMatrices
from hybrid.transport.host import HostTransport
from hybrid.verification import freivalds
from hybrid.verification.check import Suspect
from hybrid.verification.device_check import DeviceCheck
from hybrid.verification.freivalds import verify
from hybrid.verification.rounding import THRESHOLD

SHAPE = (200, 150, 300)


@pytest.fixture
def operands(rng):
    n, l, m = SHAPE
    return rng.standard_normal((n, l)), rng.standard_normal((l, m))


def checked(a, b, c, *suspects):
    team = Team()
    plan = planned(Problem(*SHAPE), team.topology)
    views = [RowView(matrix, Span(0, len(matrix))) for matrix in (a, b, c)]
    return verify(team, plan, *views, suspects=suspects)


def test_of_a_right_product_nothing_else_is_checked(operands, monkeypatch):
    a, b = operands
    suspects = Suspect(17, Span(64, 128), 9.5), Suspect(3, Span(0, 64), 8.25)
    monkeypatch.setattr(freivalds._Verification, "result", None)  # the check of all
    check = checked(a, b, a @ b, *suspects)
    assert (check.ok, check.kind, check.error) == (True, "freivalds", 9.5)
    assert "2 of the largest differences are of rounding errors" in check.note


def test_where_one_is_wrong_all_is_checked(operands):
    a, b = operands
    c = a @ b
    c[17, 70] += 1e-9
    c[100, 5] += 1
    check = checked(a, b, c, Suspect(3, Span(0, 64), 8.25), Suspect(17, Span(64, 128), 9.5))
    assert not check.ok
    assert any("row 100 of C, columns 5" in fault for fault in check.faults)


def test_without_suspects_all_is_checked(operands):
    a, b = operands
    c = a @ b
    c[100, 5] += 1
    assert not checked(a, b, c).ok


@pytest.mark.parametrize("wrong", [[(9, 70)], [(9, 70), (9, 250)], [(9, 70), (150, 5), (150, 200)]])
def test_a_device_tells_all_sums_that_look_wrong(operands, wrong):
    a, b = operands
    c, device = np.empty((SHAPE[0], SHAPE[2])), CpuDevice(staged=True)
    plan = planned(Problem(*SHAPE), Topology(((0,),)), staged=True, check="on")
    (share,) = plan.shares
    buffers = Buffers(device, device.reserve(share.layout.bytes, shared=False), share, plan.problem)
    check = DeviceCheck(device.check_operations(), check_layout(plan, 0), plan.problem)
    check.use(buffers)

    class Wrong(HostTransport):
        def store(self, tile, source, after):
            for row, column in wrong:
                if tile.rows.lo <= row < tile.rows.hi and tile.columns.lo <= column < tile.columns.hi:
                    source[row - tile.rows.lo, column - tile.columns.lo] += 1e-3
            return super().store(tile, source, after)

    transport = Wrong(device, 0, RankMatrices(a, RowView(b, Span(0, len(b))), c))
    list(run_share(share, buffers, transport, device, lambda phase: None, check))
    _, suspects, _ = check.sums.compared(THRESHOLD)
    assert sorted((suspect.row, suspect.columns.lo) for suspect in suspects) == [
        (row, column // 64 * 64) for row, column in wrong
    ]
