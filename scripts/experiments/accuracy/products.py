# SPDX-License-Identifier: MIT
"""Products on a device through the pipeline of `hybrid.multiply`, in the arithmetic that is asked for, whether or not it is the
faster one: plans are made here, since `hybrid.selection` has small matrices multiplied natively."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.devices.base import Buffers, Device
from hybrid.devices.remainders import ModularProduct
from hybrid.execution.pipeline import ShareRun
from hybrid.host.memory import RowView
from hybrid.kernels.catalogue import Kernel
from hybrid.planning.arithmetic import MOST_MODULI, Computed, joined
from hybrid.planning.plan import make_plan
from hybrid.planning.schedule import RankShare
from hybrid.planning.tiling import PlanRequest
from hybrid.transport.base import HostTransport, RankMatrices


class Products:
    """Of one shape and type. `kernel`: of native tiles. `fast`: from remainders where the guard allows it, as --precision fast or
    as auto; None: all tiles are native. `ranks`: as if they took turns on the device. `by_integers`, `keeps_b`: as of a
    ModularProduct. `tiling`: fields of a PlanRequest."""

    def __init__(
        self,
        device: Device,
        kernel: Kernel,
        problem: Problem,
        *,
        fast: bool | None,
        ranks: int = 1,
        by_integers: bool = False,
        keeps_b: bool = False,
        **tiling: Any,
    ) -> None:
        how = {"by_integers": by_integers, "keeps_b": keeps_b}
        topology, moduli = Topology.of_equal_nodes(ranks, ranks), 0 if fast is None else MOST_MODULI[problem.dtype]
        plan = make_plan(PlanRequest(problem, topology, device=device.name, moduli=moduli, **tiling))
        assert plan.moduli == moduli, "such panels leave no room for remainders"
        self._device, self._kernel, self._problem = device, kernel, problem
        self._shares: list[tuple[RankShare, Buffers, ModularProduct | None]] = []
        for share in plan.shares:
            memory = device.reserve(share.layout.bytes, shared=False)
            device.poison(memory)
            modular = None
            if fast is not None:
                modular = ModularProduct(device, memory, share, problem, fast=fast, **how)
            self._shares.append((share, Buffers(device, memory, share, problem), modular))

    def __call__(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, Computed]:
        """C, where NaN is what nobody wrote, and in which arithmetic it was computed; nothing of native products."""
        self._device.use_kernel(self._kernel, self._problem.dtype)
        c, computed = np.full((self._problem.n, self._problem.m), np.nan, self._problem.dtype), []
        for share, buffers, modular in self._shares:
            matrices = RankMatrices(a[share.rows.slice], RowView(b, Span(0, len(b))), c[share.rows.slice])
            transport = HostTransport(self._device, share.rank, matrices)
            list(ShareRun(share, buffers, transport, self._device, lambda phase: None, modular=modular).run())
            computed.append(modular.done if modular is not None else {})
        return c, joined(computed)
