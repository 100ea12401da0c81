# SPDX-License-Identifier: MIT
"""Which transport brings the operands to the devices, and why. It is decided from what is known, without trying anything."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid.core.record import record
from hybrid.core.settings import Settings
from hybrid.devices.cuda_gpus import Gpu
from hybrid.errors import DeviceUnavailable
from hybrid.plan import possible_transports
from hybrid.plan.plan import Plan
from hybrid.selection.machine import Machine, Test


@record
class TransportChoice:
    """A transport and why it was chosen."""

    name: str  # "in place", "host", "peers" or "nccl"
    reason: str
    tested: tuple[Test, ...] = ()  # the tests on whose outcomes the choice depended


def choose_transport(plan: Plan, gpus: Sequence[Gpu | None], machine: Machine, settings: Settings) -> TransportChoice | Test:
    """The fastest transport that works on the machine, or the one asked for; or a test that has to be made first.

    DeviceUnavailable if the transport asked for does not work.
    """
    if not plan.staged:
        if settings.transport not in ("auto", "host"):
            raise DeviceUnavailable(
                f"the transport {settings.transport} cannot be used: a CPU multiplies, and no GPU", code="transport"
            )
        return TransportChoice("in place", "a CPU multiplies the matrices where they lie")
    if settings.transport == "auto":
        return _fastest(plan, gpus, machine)
    if settings.transport == "host":
        return TransportChoice("host", "asked for")
    test, hindrance = {
        "peers": (Test.PEERS, possible_transports.why_no_peers(plan)),
        "nccl": (Test.NCCL, _why_no_nccl(plan, gpus)),
    }[settings.transport]
    if not hindrance and test not in machine.outcomes:
        return test
    hindrance = hindrance or machine.outcomes[test]
    if hindrance:
        raise DeviceUnavailable(f"the transport {settings.transport} cannot be used: {hindrance}", code="transport")
    return TransportChoice(settings.transport, "asked for", (test,))


def may_leave_out(settings: Settings) -> bool:
    """Whether the transport asked for allows ranks without rows."""
    return settings.transport in ("auto", "host")


def _fastest(plan: Plan, gpus: Sequence[Gpu | None], machine: Machine) -> TransportChoice | Test:
    """The fastest transport that works: peers; or NCCL, where no node has several ranks, or where the ranks of the only node do
    not reach each other's GPUs; else host."""
    one_rank_a_node = len(plan.topology.nodes) == plan.topology.size
    no_peers, no_nccl = possible_transports.why_no_peers(plan), _why_no_nccl(plan, gpus)
    if no_peers and (no_nccl or not one_rank_a_node):
        if one_rank_a_node and plan.topology.size > 1 and plan.device == "cuda" and no_nccl != no_peers:
            no_peers = f"one rank a node has no peers, nor can NCCL help ({no_nccl})"
        return TransportChoice("host", no_peers)
    if plan.device != "cuda":
        return TransportChoice("host", "all memory is a CPU's own")
    if plan.problem.operand_bytes(plan.problem.l, plan.problem.m) < machine.model.least_exchange_bytes:
        return TransportChoice("host", no_peers or "B is small")
    tested: tuple[Test, ...] = ()
    if one_rank_a_node:
        no_peers = "one rank a node has no peers"
    else:
        if Test.PEERS not in machine.outcomes:
            return Test.PEERS
        tested, refusal = (Test.PEERS,), machine.outcomes[Test.PEERS]
        if not refusal:
            return TransportChoice("peers", "each rank fetched data from the GPUs of its node's other ranks", tested)
        no_peers = f"the GPUs of a node cannot reach each other ({refusal})"
        if len(plan.topology.nodes) > 1:
            return TransportChoice("host", no_peers, tested)
    if not no_nccl:
        if Test.NCCL not in machine.outcomes:
            return Test.NCCL
        tested, no_nccl = (*tested, Test.NCCL), machine.outcomes[Test.NCCL]
    if no_nccl:
        return TransportChoice("host", f"{no_peers}, nor can NCCL help ({no_nccl})", tested)
    return TransportChoice("nccl", f"{no_peers}, but NCCL brought every rank's data to every other", tested)


def _why_no_nccl(plan: Plan, gpus: Sequence[Gpu | None]) -> str:
    """Why NCCL cannot be used: what the plan says, or that two ranks share a GPU, of which NCCL wants one for each
    rank; "" if it can."""
    if hindrance := possible_transports.why_no_nccl(plan):
        return hindrance
    users: dict[str, int] = {}
    for rank, gpu in enumerate(gpus):
        if gpu is not None and users.setdefault(gpu.uuid, rank) != rank:
            return f"ranks {users[gpu.uuid]} and {rank} share a GPU"
    return ""
