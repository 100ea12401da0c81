# SPDX-License-Identifier: MIT
"""A right kernel's counters in a lecture's words: coalescing, bank conflicts, divergence."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hybrid.classroom.case import Case
from hybrid.classroom.gpu_models import WARP
from hybrid.core.problem import record
from hybrid.core.text import counted
from hybrid.emulation.requests import SECTOR_BYTES, SHARED, Site

_SHARING = 4  # a load is a broadcast if at least so many lanes, on average, want the same element

Names = tuple[str, str, str]  # of A, B and C in the kernel


@record
class Counter:
    """What a line of the kernel does."""

    line: int
    text: str
    dear: bool  # it costs more than it has to


def traffic(case: Case, names: Names) -> str:
    """Loads and stores of global memory, in a line."""
    n, l, m = case.sizes
    outcome = next(iter(case.outcomes.values()))
    a, b = (loads / (n * l * m) for loads in outcome.loads)
    stores = outcome.stores / (n * m)
    each = f"{names[0]} {a:.3g}, {names[1]} {b:.3g}"
    return f"global loads per multiply-add: {a + b:.3g} ({each}); stores per element: {stores:.3g}"


def intensity(case: Case) -> float | None:
    """Operations for each byte of global memory that is moved, in whole sectors; None where no memory was looked at."""
    moved = SECTOR_BYTES * sum(site.sectors for site in case.sites if site.space != SHARED)
    return 2 * math.prod(case.sizes) / moved if moved else None


def divergence(case: Case) -> Iterator[Counter]:
    """The lines at whose branches lanes of a warp go different ways."""
    for branch in case.branches:
        if branch.divergent:
            executions = counted(branch.executions, "execution")
            yield Counter(branch.line, f"in {branch.divergent} of {executions} by a warp", dear=True)


def use_of_memory(site: Site, names: Names) -> Counter:
    """How a line's requests use memory."""
    shared, lanes = site.space == SHARED, site.lanes / site.requests
    what = "shared memory" if shared else names[site.space]
    does = {"load": f"loads from {what}", "store": f"stores to {what}", "atomic": f"updates {what} atomically"}[site.kind]
    of_lanes = f"a request of {lanes:.3g} lane{'s' * (lanes != 1)}" if lanes < WARP else "a warp's request"
    if shared:
        ways = site.steps / site.least_steps
        how = "no bank conflicts" if ways <= 1 else f"{ways:.3g}-way bank conflicts"
        return Counter(site.line, f"{does}: {how}, for {of_lanes}", dear=ways > 1)
    sectors, used = site.sectors / site.requests, site.bytes / (SECTOR_BYTES * site.sectors)
    is_broadcast = site.addresses * _SHARING <= site.lanes
    if site.kind == "atomic" and site.lanes > site.addresses:
        how = f"{site.lanes / site.addresses:.3g} lanes at the same element, one after the other"
    elif is_broadcast:
        how = f"broadcast, {site.lanes / site.addresses:.3g} lanes want the same"
    else:
        how = "coalesced" if used >= 1 else f"not coalesced, {100 * used:.0f} % of what is moved is wanted"
    many = f"{sectors:.3g} sector{'' if sectors == 1 else 's'} of {SECTOR_BYTES} bytes"
    return Counter(site.line, f"{does}: {many} for {of_lanes}: {how}", dear=used < 1 and not is_broadcast)
