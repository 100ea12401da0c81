# SPDX-License-Identifier: MIT
"""What the check is told of copies: each once and in order, when others have been submitted."""

from __future__ import annotations

import numpy as np
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.devices.cpu import CpuDevice
from hybrid.host.row_view import RowView
from hybrid.transport.base import RankMatrices
from hybrid.transport.host import HostTransport
from hybrid.transport.told_later import ToldLater

PROBLEM = Problem(40, 30, 20, "float64")


class Told(list):
    """An observer that keeps the arrivals."""

    def loaded(self, rank, arrival, event):
        self.append((rank, arrival, event))


def test_some_are_told_and_then_all_in_their_order():
    told = Told()
    later = ToldLater(told)
    for number in range(11):
        later.add(0, number, -number)
    assert told == []
    later.tell_some()
    assert told == [(0, number, -number) for number in range(4)]
    later.tell_all()
    later.tell_all()
    assert told == [(0, number, -number) for number in range(11)]


def test_of_a_product_that_failed_nothing_is_told_in_the_next():
    told = Told()
    later = ToldLater(told)
    later.add(0, 1, 1)
    later.forget()
    later.tell_all()
    assert told == []


def test_nobody_needs_to_want_it():
    later = ToldLater(None)
    later.add(0, 1, 1)
    later.tell_all()


def test_loading_tells_nothing_and_the_end_of_a_product_everything(rng):
    share = planned(PROBLEM, Topology(((0,),)), staged=True, panel_rows=8, panel_columns=4).shares[0]
    a, b = rng.standard_normal((40, 30)), RowView(rng.standard_normal((30, 20)), Span(0, 30))
    told, device = Told(), CpuDevice(staged=True)
    transport = HostTransport(device, 3, RankMatrices(a, b, np.empty((40, 20))), told)
    transport.begin(share.order)
    for arrival in share.order:
        shape = (len(arrival.span), 30) if arrival.operand == "A" else (30, len(arrival.span))
        transport.load(arrival, np.empty(shape), [])
    assert told == []
    transport.advance()
    assert 0 < len(told) < len(share.order)
    transport.finish()
    assert [(rank, arrival) for rank, arrival, _ in told] == [(3, arrival) for arrival in share.order]
