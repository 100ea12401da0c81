# SPDX-License-Identifier: MIT
"""What all calls of `multiply` have in common, whatever holds the matrices: all ranks must ask for the same, and raise
together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hybrid.arrays.gemm import ProductType
from hybrid.core.settings import Settings
from hybrid.core.text import warn
from hybrid.errors import CheckFailed, UsageError
from hybrid.host.threads import usable_cores
from hybrid.ranks.team import Team
from hybrid.verification.check import Check

if TYPE_CHECKING:
    pass


def refuse_no_rank(team: Team, root: int) -> None:
    """UsageError unless `root` is the number of a rank."""
    if type(root) is not int or not 0 <= root < team.size:
        raise UsageError(f"root {root!r} is not a rank of a communicator of {team.size}", code="root")


def settle(check: Check | None, *, warns: bool) -> None:
    """CheckFailed where the product is wrong. Where `warns`, this rank warns of what was repaired."""
    if check is None:
        return
    if not check.ok:
        raise CheckFailed(check.refusal(), code=check.code)
    for line in check.repaired if warns else ():
        warn(f"repaired: {line}")


def exactly(settings: Settings, types: ProductType) -> Settings:
    """The settings for a product of these types. Of integers it is native: nothing may be rounded, also not where that would be
    as accurate as float64."""
    return replace(settings, precision="native") if types.exact is not None else settings


def threads_until_decided(team: Team, settings: Settings) -> int:
    """The number of threads with which a rank looks at its operands, before it is decided how many it has."""
    return settings.threads or max(1, len(usable_cores()) // len(team.node_ranks))
