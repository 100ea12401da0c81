# SPDX-License-Identifier: MIT
"""The machine a decision is made for: found by the ranks of a job, or assumed for `--explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum

from hybrid.core.record import record
from hybrid.core.settings import Settings
from hybrid.core.spans import Topology
from hybrid.devices.cuda_gpus import Gpu
from hybrid.errors import UsageError
from hybrid.host.threads import Threads, choose_threads
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, named
from hybrid.plan.capacity import FreeMemory
from hybrid.plan.machine_model import H200, MachineModel

_MOST_OF_A_NODE = 1024  # ranks, where a machine is assumed
_UNLIMITED = 1 << 200  # bytes of a memory of which nothing was said


@record
class Processor:
    """What a rank's number of CPU threads depends on."""

    cores: tuple[int, ...]
    quota: float | None  # cores' worth of time that a container may use; None: not limited
    environment: Mapping[str, str]  # the variables that limit threads


@record
class Inventory:
    """What one rank finds before a product."""

    processor: Processor
    gpus: tuple[Gpu, ...]
    why_no_gpu: str  # empty where GPUs were found, or not looked for
    free: FreeMemory
    remembers: int = field(compare=False)  # the serial of the decision that this rank would take again; 0: none
    model: MachineModel = H200


class Test(Enum):
    """What can only be found out by trying. All ranks try together."""

    __test__ = False  # pytest takes it for a test class otherwise

    PEERS = "every rank fetches data from the GPUs of its node's other ranks"
    NCCL = "NCCL brings every rank's data to every other"


@record
class Machine:
    """What is known of all ranks. `ranks[rank]` is a rank's inventory.

    `free[rank]`: its free memory, measured for this product; empty if it was not measured: then the inventories have what is
    known without asking the GPUs. `outcomes`: for each test that was made, why it failed; "" where it passed.
    """

    topology: Topology
    ranks: tuple[Inventory, ...]
    free: tuple[FreeMemory, ...] = ()
    outcomes: Mapping[Test, str] = field(default_factory=dict)

    @property
    def memory(self) -> Sequence[FreeMemory]:
        """Each rank's free memory, as far as it is known."""
        return self.free or [rank.free for rank in self.ranks]

    @property
    def model(self) -> MachineModel:
        """The ranks' model of the machine. UsageError if they have different ones."""
        model = self.ranks[0].model
        for rank, other in enumerate(self.ranks):
            for name, value in vars(other.model).items() if other.model != model else ():
                if value != getattr(model, name):
                    raise UsageError(
                        f"HYBRID_MACHINE gives {name} {value} on rank {rank}, {getattr(model, name)} on rank 0: "
                        "all ranks must have the same numbers",
                        code="ranks-differ",
                    )
        return model


def assumed_machine(settings: Settings, ranks: int, gpus_per_node: int = 0, capability: int = 0) -> Machine:
    """A machine that is only assumed: memory that the settings do not limit is unlimited, and every test passes.

    `gpus_per_node`: 0 for no GPUs; but if the device or the kernel asked for needs GPUs, there is one for each rank then.
    """
    per_node = min(ranks, settings.ranks_per_node or gpus_per_node or ranks)
    if per_node > _MOST_OF_A_NODE:
        raise UsageError(
            f"{per_node} ranks are too many for a node: {_MOST_OF_A_NODE} at most, --nodes gives the number of nodes",
            code="number",
        )
    topology = Topology.of_equal_nodes(ranks, per_node)
    kernel = named(settings.kernel)
    with_gpus = settings.device in ("auto", "cuda") and (
        bool(gpus_per_node) or settings.device == "cuda" or (kernel is not None and kernel.device == "cuda")
    )
    inventories, free, model = [], [], MachineModel.of(settings.machine)
    gpus_of_nodes = [
        tuple(
            Gpu(index, f"node {node} GPU {index}", "assumed", capability or EMULATED_CAPABILITY)
            for index in range((gpus_per_node or len(members)) if with_gpus else 0)
        )
        for node, members in enumerate(topology.nodes)
    ]
    for rank in range(ranks):
        node = topology.node_of(rank)
        local_rank = topology.nodes[node].index(rank)
        gpus, count = gpus_of_nodes[node], len(gpus_of_nodes[node])
        memory = FreeMemory(
            host=f"node {node}",
            host_bytes=settings.host_memory or _UNLIMITED,
            shared_bytes=settings.host_memory or _UNLIMITED,
            gpu_bytes=settings.gpu_memory or _UNLIMITED,
            gpu_id=gpus[local_rank % count].uuid if count else "",
        )
        processor = Processor((local_rank,), None, {})
        why_no_gpu = "" if count else "no GPU is assumed: --gpus-per-node gives their number"
        inventories.append(Inventory(processor, gpus, why_no_gpu, memory, 0, model))
        free.append(memory)
    return Machine(topology, tuple(inventories), tuple(free), dict.fromkeys(Test, ""))


def threads_of_ranks(topology: Topology, settings: Settings, processors: Sequence[Processor]) -> list[Threads]:
    """How many CPU threads each rank has, and why."""
    chosen = []
    for rank, own in enumerate(processors):
        members = topology.nodes[topology.node_of(rank)]
        cores = [processors[member].cores for member in members]
        chosen.append(choose_threads(settings.threads, members.index(rank), cores, own.environment, own.quota))
    return chosen
