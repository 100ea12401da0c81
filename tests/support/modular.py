# SPDX-License-Identifier: MIT
"""Products from remainders on the emulated GPU, without MPI."""

from __future__ import annotations

from collections import Counter

import numpy as np
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.devices.buffers import Buffers
from hybrid.devices.emulated import EmulatedDevice
from hybrid.devices.modular import ModularProduct
from hybrid.execution.pipeline import run_share
from hybrid.host.row_view import RowView
from hybrid.kernels.catalogue import named
from hybrid.plan.arithmetic import most_moduli
from hybrid.transport.base import RankMatrices
from hybrid.transport.host import HostTransport


def product(a, b, *, fast=False, ranks=1, **tiling):
    """C, and how many of its elements were computed in which arithmetic."""
    (n, l), m, dtype = a.shape, b.shape[1], a.dtype.name
    c, done = np.full((n, m), np.nan, dtype), Counter()
    topology = Topology.of_equal_nodes(ranks, ranks)
    plan = planned(Problem(n, l, m, dtype), topology, device="emulate", moduli=most_moduli(dtype), **tiling)
    assert plan.moduli
    for share in plan.shares:
        device = EmulatedDevice(named("tiled"), dtype)
        memory = device.reserve(share.layout.bytes, shared=False)
        device.poison(memory)
        modular = ModularProduct(device, memory, share, plan.problem, fast=fast)
        parts = RankMatrices(a[share.rows.slice], RowView(b, Span(0, l)), c[share.rows.slice])
        buffers = Buffers(device, memory, share, plan.problem)
        run_share(share, buffers, HostTransport(device, share.rank, parts), device, lambda phase: None, None, None, modular)
        done.update(modular.done)
    return c, dict(done)
