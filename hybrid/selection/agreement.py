# SPDX-License-Identifier: MIT
"""All ranks come to the same decision, before any data moves, from what they find together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybrid.core.settings import Settings
from hybrid.selection.decision import Decision, ProductRequest, Unknown, decide
from hybrid.selection.inventory import free_memory_of
from hybrid.selection.machine import Inventory, Machine
from hybrid.selection.session import Remembered, Session


def agree(session: Session, request: ProductRequest, settings: Settings, inventories: Sequence[Inventory]) -> Decision:
    """The decision for this product, the same on every rank. Every rank calls it, with the inventories of all ranks.

    Raises on all ranks alike: DoesNotFit with the missing amount, UsageError, DeviceUnavailable.

    The last decision is taken again if the same is asked for, unless free memory had to be measured for it: that may have changed
    without a sign.
    """
    asked = request, settings, tuple(inventories)
    serials = {inventory.remembers for inventory in inventories}  # a rank that failed alone remembers another one, or none
    known = session.remembered  # which all ranks may have forgotten since, where another plan was tried first and rejected
    if len(serials) == 1 and 0 not in serials and known is not None and known.asked == asked:
        return known.decision
    machine = Machine(session.team.topology, tuple(inventories))
    decision = decide(machine, request, settings)
    while isinstance(decision, Unknown):
        machine = _find_out(session, machine, settings, decision)
        decision = decide(machine, request, settings)
    if decision.shortage:
        raise decision.shortage.error()
    decision.plan.refuse_endless()
    if decision.needs_reserved:
        session.release_device()
    if machine.free:
        session.remembered = None
    elif session.rank_device is not None:
        session.remembered = Remembered(session.team.serial, asked, decision, session.rank_device.memory_version)
    return decision


def _find_out(session: Session, machine: Machine, settings: Settings, unknown: Unknown) -> Machine:
    """The machine, now with what was unknown. Every rank calls it."""
    team = session.team
    if unknown.test is None:
        with team.phase("agree", timed=False) as looking:
            looking.mine = free_memory_of(session, settings, unknown.gpus[team.rank], now=True)
        return replace(machine, free=tuple(looking.all))
    again = settings.transport != "auto"  # who asks for a transport may have mended what an earlier test failed for
    outcome = session.why_test_fails(unknown.test, unknown.plan, unknown.gpus, unknown.kernel, again=again)
    return replace(machine, outcomes={**machine.outcomes, unknown.test: outcome})
