# SPDX-License-Identifier: MIT
"""Does a plan fit the memory of its nodes and GPUs? If it does not, how much is missing?"""

from __future__ import annotations

from collections.abc import Sequence

from hybrid.core.record import record
from hybrid.core.text import readable
from hybrid.errors import DoesNotFit
from hybrid.plan.plan import Plan


@record
class FreeMemory:
    """The memory that a rank may use. `gpu_id` tells which ranks share a GPU.

    Where not `gpu_queried`, the driver has not been asked yet: `gpu_bytes` is an upper limit only, and what is certain is
    `gpu_reserved`, which this project still holds from earlier products.
    """

    host: str
    host_bytes: int
    shared_bytes: int  # free in the folder where node-shared matrices are made
    gpu_bytes: int = 0
    gpu_id: str = ""
    gpu_reserved: int = 0  # the part of gpu_bytes in buffers of earlier products, which the next one uses
    gpu_pooled: int = 0  # the part of gpu_bytes in CuPy's memory pool of this process, for arrays such as a rank's rows of C
    gpu_queried: bool = True


@record
class Shortage:
    """Which memory is too small, and how much of it is missing. `code`: of `hybrid.errors.CODES`."""

    code: str
    text: str

    def error(self) -> DoesNotFit:
        return DoesNotFit(self.text, code=self.code)


def shortage(
    plan: Plan,
    free: Sequence[FreeMemory],
    *,
    already_there: int = 0,
    besides: Sequence[int] = (),
    besides_on_gpu: Sequence[int] = (),
) -> Shortage | None:
    """Which node or GPU has no room for its part, and how much is missing. None if everything fits.

    `free[rank]`: for all ranks. `already_there`: bytes on the root's node that the plan counts and that are allocated already.
    `besides[rank]`: host memory that a rank needs and the plan does not count; `besides_on_gpu[rank]`: the same for its GPU.
    """
    of_hosts = _shortage_of_hosts(plan, free, already_there, besides)
    return of_hosts or _shortage_of_staging(plan) or _shortage_of_gpus(plan, free, besides_on_gpu)


def shortage_of_matrix(needed: int, free: Sequence[FreeMemory], *, shared: bool) -> Shortage | None:
    """Where a matrix of so many bytes has no room on a node. None if it fits.

    `free`: for the ranks of the node. `shared`: the matrix lies in node-shared memory.
    """
    places = [("memory", min(each.host_bytes for each in free), "")]
    if shared:
        enlarge = "; enlarge /dev/shm (in a container: --shm-size)"
        places.append(("shared memory", min(each.shared_bytes for each in free), enlarge))
    for kind, available, remedy in places:
        if needed > available:
            return Shortage(
                "host-memory" if kind == "memory" else "shared-memory",
                f"a matrix of {readable(needed)} does not fit the {kind} of {free[0].host}, where {readable(available)} are "
                f"free: {readable(needed - available)} are missing{remedy}",
            )
    return None


def _shortage_of_hosts(plan: Plan, free: Sequence[FreeMemory], already_there: int, besides: Sequence[int]) -> Shortage | None:
    nodes_of_host: dict[str, list[int]] = {}  # several only where nodes are pretended
    for index, ranks in enumerate(plan.topology.nodes):
        nodes_of_host.setdefault(free[ranks[0]].host, []).append(index)
    for host, nodes in nodes_of_host.items():
        here = [rank for index in nodes for rank in plan.topology.nodes[index]]
        there = already_there if plan.root_node in nodes else 0
        needed = sum(plan.bytes_on_node(index) for index in nodes) - there
        needed += sum(besides[rank] for rank in here) if besides else 0
        available = min(free[rank].host_bytes for rank in here)
        if needed > available:
            return Shortage(
                "host-memory",
                f"{plan.problem} needs {readable(needed)} of memory on {host}, which has {readable(available)}: "
                f"{readable(needed - available)} are missing; use more nodes, smaller matrices or float32",
            )
        several = [index for index in nodes if len(plan.topology.nodes[index]) > 1 and not plan.at_root]
        needed = sum(plan.bytes_shared_on_node(index) for index in several) - there
        available = min(free[rank].shared_bytes for rank in here)
        if needed > available:
            return Shortage(
                "shared-memory",
                f"{plan.problem} needs {readable(needed)} of shared memory on {host}, where {readable(available)} are free: "
                f"{readable(needed - available)} are missing; enlarge /dev/shm (in a container: --shm-size) or start one rank "
                "a node",
            )
    return None


def _shortage_of_staging(plan: Plan) -> Shortage | None:
    """A shortage on a device that is no GPU, whose buffers --gpu-memory limits."""
    if not (plan.staged and plan.device_memory) or plan.device == "cuda":
        return None
    for rank in range(plan.topology.size):
        if plan.bytes_of_buffers(rank) > plan.device_memory:
            return Shortage(
                "gpu-memory",
                f"a row of A, a column of B and their element of C take {readable(plan.bytes_of_buffers(rank))}, but rank {rank} "
                f"may take {readable(plan.device_memory)} (--gpu-memory)",
            )
    return None


def _shortage_of_gpus(plan: Plan, free: Sequence[FreeMemory], besides: Sequence[int]) -> Shortage | None:
    ranks_of_gpu: dict[str, list[int]] = {}
    for rank, memory in enumerate(free if plan.device == "cuda" else ()):
        ranks_of_gpu.setdefault(memory.gpu_id, []).append(rank)
    for ranks in ranks_of_gpu.values():
        needed = sum(plan.bytes_on_gpu(rank) + (besides[rank] if besides else 0) for rank in ranks)
        available = min(free[rank].gpu_bytes for rank in ranks)
        if needed > available:
            named = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
            return Shortage(
                "gpu-memory",
                f"{plan.problem} needs {readable(needed)} on the GPU of {named} on {free[ranks[0]].host}, "
                f"which has {readable(available)} free: "
                f"{readable(needed - available)} are missing; use more GPUs, smaller matrices or float32",
            )
    return None
