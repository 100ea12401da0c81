# SPDX-License-Identifier: MIT
"""Which transports between devices a plan allows, as far as its numbers tell."""

from __future__ import annotations

from hybrid.plan.plan import Plan

_THROUGH_HOSTS = "the nodes form a grid, whose parts travel from host to host"


def why_no_peers(plan: Plan) -> str:
    """Why the ranks of a node cannot take B from each other's devices; empty where they may."""
    if plan.grid_layout is not None:
        return _THROUGH_HOSTS
    if all(len(members) == 1 for members in plan.topology.nodes):
        return "one rank a node: nothing to exchange"
    if plan.has_row_blocks and len(plan.topology.nodes) > 1:
        return "rows of B lie on other nodes"
    return _why_not_all_resident(plan)


def why_no_nccl(plan: Plan) -> str:
    """Why NCCL cannot bring all ranks' rows of B to all devices; empty where it may."""
    if plan.topology.size == 1:
        return "one rank: nothing to exchange"
    if plan.device != "cuda":
        return "NCCL joins GPUs only"
    if plan.grid_layout is not None:
        return _THROUGH_HOSTS
    return _why_not_all_resident(plan) or _why_no_room_for_nccl(plan)


def _why_no_room_for_nccl(plan: Plan) -> str:
    """Why the buffers that NCCL needs, which are larger than others, do not fit; empty where they do, and where the plan is not
    cut to the devices' memory."""
    by_nccl, memory = plan.with_transport("nccl"), plan.device_memory
    if memory and any(by_nccl.bytes_on_gpu(rank) > memory for rank in range(plan.topology.size)):
        return "the devices have no room for what it needs beside the panels"
    return ""


def _why_not_all_resident(plan: Plan) -> str:
    if not all(share.holds_all for share in plan.shares):
        return "not everything fits on the devices: some panels are loaded more than once"
    if not all(len(share.rows) and share.column_panels for share in plan.shares):
        return "some ranks have nothing to multiply"
    return ""
