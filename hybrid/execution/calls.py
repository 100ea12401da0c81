# SPDX-License-Identifier: MIT
"""What all calls of `multiply` have in common, whatever holds the matrices: all ranks ask for the same, and raise together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hybrid.arrays.product_type import ProductType
from hybrid.core.caller import warn
from hybrid.core.settings import Settings
from hybrid.errors import CheckFailed, UsageError
from hybrid.host.threads import usable_cores
from hybrid.ranks.team import Team
from hybrid.verification.check import Check


def asked_for(settings: Settings, **more: Any) -> dict[str, Any]:
    return more | settings.as_dict()


def refuse_no_rank(team: Team, root: int) -> None:
    if type(root) is not int or not 0 <= root < team.size:
        raise UsageError(f"root {root!r} is not a rank of a communicator of {team.size}")


def settle(check: Check | None, *, warns: bool) -> None:
    """Refuse a product that is wrong; `warns`: this rank says what was repaired."""
    if check is None:
        return
    if not check.ok:
        raise CheckFailed(check.refusal())
    for line in check.repaired if warns else ():
        warn(f"repaired: {line}")


def exactly(settings: Settings, types: ProductType) -> Settings:
    """Of a product of integers nothing may be rounded, also not where that would be as accurate."""
    return replace(settings, precision="native") if types.exact else settings


def threads_until_decided(team: Team, settings: Settings) -> int:
    """With which a rank may look at its operands before there is a decision."""
    return settings.threads or max(1, len(usable_cores()) // len(team.node_ranks))
