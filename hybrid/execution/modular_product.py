# SPDX-License-Identifier: MIT
"""What computes the tiles of a rank's share from remainders, kept with the rank's device from product to product."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybrid.core.settings import Settings
from hybrid.plan.plan import Plan
from hybrid.plan.rank_share import RankShare
from hybrid.selection.decision import Decision
from hybrid.transport.rank_device import RankDevice

if TYPE_CHECKING:
    from hybrid.devices.modular import ModularProduct


def modular_product(
    rank_device: RankDevice, decision: Decision, plan: Plan, share: RankShare, settings: Settings
) -> ModularProduct | None:
    """None where the share's products are native. `plan`: the one to which the share belongs; on a grid, of the rank's part,
    which may have no terms at all where the terms are divided as well."""
    if share.layout.remainders is None or not plan.problem.l:
        return None
    from hybrid.devices.modular import ModularProduct  # native products start sooner without these modules
    from hybrid.kernels.remainders import lacks_float64

    # All ranks do the last step alike, so that C's bits do not depend on which rank computes them.
    gpus = [placement.gpu for placement in decision.placements if placement.gpu is not None]
    how = {
        "fast": settings.precision == "fast",
        "by_integers": any(lacks_float64(gpu.capability) for gpu in gpus),
        "keeps_b": plan.has_row_blocks,
    }
    memory = rank_device.memory
    made: ModularProduct = rank_device.once_for_plan(
        f"modular {how}", plan, lambda: ModularProduct(rank_device.device, memory, share, plan.problem, **how)
    )
    return made
