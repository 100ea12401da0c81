"""What memory a plan finds on ranks, nodes and GPUs; and the refusal of what does not fit there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hybrid.core.text import readable
from hybrid.errors import DoesNotFit
from hybrid.plan.plan import Plan


@dataclass(frozen=True)
class FreeMemory:
    """Memory a rank sees free. `gpu_id` tells which ranks share a GPU.

    Not `gpu_asked`: `gpu_bytes` are what may be used, whether they are free or not; only what is held is there for certain.
    """

    host: str
    host_bytes: int
    shared_bytes: int  # in the folder where shared matrices live
    gpu_bytes: int = 0
    gpu_id: str = ""
    gpu_reserved: int = 0  # of gpu_bytes: by this project, for the next product
    gpu_pooled: int = 0  # of gpu_bytes: by this process, for arrays such as resident rows of C
    gpu_queried: bool = True


def refuse_what_does_not_fit(
    plan: Plan, rooms: Sequence[FreeMemory], *, already_there: int = 0, besides: Sequence[int] = ()
) -> None:
    """Raise DoesNotFit, with the missing amount, if some node or GPU cannot hold its part. `rooms[rank]`, for all ranks.

    `already_there`: bytes of the forecast on the root's node that exist already. `besides[rank]`: of a rank's host memory,
    that the plan does not know of.
    """
    nodes_of_host: dict[str, list[int]] = {}  # several only where nodes are pretended
    for index, ranks in enumerate(plan.topology.nodes):
        nodes_of_host.setdefault(rooms[ranks[0]].host, []).append(index)
    for host, nodes in nodes_of_host.items():
        here = [rank for index in nodes for rank in plan.topology.nodes[index]]
        need = sum(plan.bytes_on_node(index) for index in nodes) - (already_there if plan.root_node in nodes else 0)
        need += sum(besides[rank] for rank in here) if besides else 0
        free = min(rooms[rank].host_bytes for rank in here)
        if need > free:
            raise DoesNotFit(
                f"{plan.problem} needs {readable(need)} of memory on {host}, which has {readable(free)}: "
                f"{readable(need - free)} are missing; use more nodes, smaller matrices or float32"
            )
        need = sum(
            plan.bytes_shared_on_node(index) for index in nodes if len(plan.topology.nodes[index]) > 1 and not plan.at_root
        )
        need -= already_there if plan.root_node in nodes else 0
        free = min(rooms[rank].shared_bytes for rank in here)
        if need > free:
            raise DoesNotFit(
                f"{plan.problem} needs {readable(need)} of shared memory on {host}, where {readable(free)} are free: "
                f"{readable(need - free)} are missing; enlarge /dev/shm (in a container: --shm-size) or start one rank a node"
            )
    for share in plan.shares if plan.staged and plan.device_memory else ():
        if share.layout.bytes > plan.device_memory and plan.device != "cuda":
            raise DoesNotFit(
                f"a row of A, a column of B and their element of C take {readable(share.layout.bytes)}, but rank {share.rank} "
                f"may take {readable(plan.device_memory)} (--gpu-memory)"
            )
    by_gpu: dict[str, list[int]] = {}
    for rank, room in enumerate(rooms):
        if plan.device == "cuda":
            by_gpu.setdefault(room.gpu_id, []).append(rank)
    for users in by_gpu.values():
        need = sum(plan.bytes_on_gpu(rank) for rank in users)
        free = min(rooms[rank].gpu_bytes for rank in users)
        if need > free:
            named = f"rank {users[0]}" if len(users) == 1 else f"ranks {', '.join(map(str, users))}"
            raise DoesNotFit(
                f"{plan.problem} needs {readable(need)} on the GPU of {named} on {rooms[users[0]].host}, "
                f"which has {readable(free)} free: "
                f"{readable(need - free)} are missing; use more GPUs, smaller matrices or float32"
            )
