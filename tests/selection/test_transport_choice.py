# SPDX-License-Identifier: MIT
"""Which transport is chosen where, on made-up machines."""

from __future__ import annotations

import pytest
from support.machines import machine_of
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, Topology
from hybrid.devices.cuda_gpus import Gpu
from hybrid.errors import DeviceUnavailable
from hybrid.plan.request import RowBlocks
from hybrid.selection.machine import Test
from hybrid.selection.transport import TransportChoice, choose_transport

LARGE, SMALL = Problem(2000, 2000, 2000), Problem(200, 200, 200)


class Choosing:
    """`peers` and `nccl` are why a test fails there, empty where it passes. Tests are made when they are asked for."""

    def __init__(self, nodes, *, peers="", nccl="", gpus=None, **more):
        self.tried = []
        self.outcomes = {Test.PEERS: peers, Test.NCCL: nccl}
        self.plan = planned(**{"problem": LARGE, "topology": Topology(nodes), "device": "cuda", **more})
        size = self.plan.topology.size
        self.gpus = [Gpu(0, f"GPU-{uuid}", "made up") for uuid in gpus or range(size)] if self.plan.device == "cuda" else [None]

    def choice(self, transport="auto"):
        machine, self.tried = machine_of(self.plan.topology), []
        while isinstance(chosen := choose_transport(self.plan, self.gpus, machine, Settings(transport=transport)), Test):
            self.tried.append(chosen.name.lower())
            machine.outcomes[chosen] = self.outcomes[chosen]
        return chosen


ONE_NODE, TWO_NODES, ONE_EACH = ((0, 1),), ((0, 1), (2, 3)), ((0,), (1,))


def test_peers_come_first():
    choosing = Choosing(ONE_NODE)
    assert choosing.choice().name == "peers"
    assert choosing.tried == ["peers"]


def test_nccl_helps_the_ranks_of_one_node_that_do_not_reach_each_other():
    choosing = Choosing(ONE_NODE, peers="no peer access")
    choice = choosing.choice()
    assert choice.name == "nccl"
    assert choice.reason == (
        "the GPUs of a node cannot reach each other (no peer access), but NCCL brought every rank's data to every other"
    )
    assert choosing.tried == ["peers", "nccl"]


def test_without_either_host_is_chosen_and_both_reasons_told():
    choosing = Choosing(ONE_NODE, peers="no peer access", nccl="no library")
    choice = choosing.choice()
    assert choice.name == "host"
    assert choice.reason == "the GPUs of a node cannot reach each other (no peer access), nor can NCCL help (no library)"
    assert choosing.tried == ["peers", "nccl"]


def test_between_several_nodes_of_several_ranks_nccl_is_not_tried():
    choosing = Choosing(TWO_NODES)
    assert choosing.choice().name == "peers"
    choosing = Choosing(TWO_NODES, peers="no peer access")
    choice = choosing.choice()
    assert (choice.name, choice.reason) == ("host", "the GPUs of a node cannot reach each other (no peer access)")
    rows = tuple(Span(500 * rank, 500 * (rank + 1)) for rank in range(4))
    choosing = Choosing(TWO_NODES, row_blocks=RowBlocks(rows, rows))
    choice = choosing.choice()
    assert (choice.name, choice.reason) == ("host", "rows of B lie on other nodes")
    assert choosing.tried == []


def test_with_one_rank_a_node_nccl_comes_first():
    choosing = Choosing(ONE_EACH)
    choice = choosing.choice()
    assert choice.name == "nccl"
    assert choice.reason == "one rank a node has no peers, but NCCL brought every rank's data to every other"
    choosing = Choosing(ONE_EACH, nccl="no library")
    choice = choosing.choice()
    assert choice.name == "host"
    assert choice.reason == ("one rank a node has no peers, nor can NCCL help (no library)")


HINDRANCES = {
    "one rank": ({"nodes": ((0,),)}, "one rank"),
    "small matrices": ({"nodes": ONE_EACH, "problem": SMALL}, None),
    "one GPU": ({"nodes": ONE_EACH, "gpus": "aa"}, "ranks 0 and 1 share a GPU"),
    "a GPU shared by later ranks": ({"nodes": (*ONE_EACH, (2,)), "gpus": "aba"}, "ranks 0 and 2 share a GPU"),
    "little memory": ({"nodes": ONE_EACH, "device_memory": 30 << 20}, "not everything fits on the devices"),
    "few rows": ({"nodes": ONE_EACH, "problem": Problem(1, 2000, 2000)}, "some ranks have nothing to multiply"),
    "no columns": ({"nodes": ONE_EACH, "problem": Problem(9, 2000, 0)}, "some ranks have nothing to multiply"),
    "CPUs": ({"nodes": ONE_EACH, "device": "cpu", "staged": True}, "NCCL joins GPUs only"),
}


@pytest.mark.parametrize("hindrance", HINDRANCES, ids=str)
def test_what_hinders_nccl_is_seen_before_it_is_started(hindrance):
    machine_is, reason = HINDRANCES[hindrance]
    choosing = Choosing(**machine_is)
    assert choosing.choice().name == "host"
    assert choosing.tried == []
    if reason is None:
        assert choosing.choice("nccl") == TransportChoice("nccl", "asked for", (Test.NCCL,))
        return
    with pytest.raises(DeviceUnavailable, match=f"^the transport nccl cannot be used: {reason}"):
        choosing.choice("nccl")
    assert choosing.tried == []


def test_ranks_of_a_node_that_share_a_gpu_are_told_so_where_peers_fail_too():
    choosing = Choosing(ONE_NODE, peers="no peer access", gpus="aa")
    assert choosing.choice().reason.endswith("nor can NCCL help (ranks 0 and 1 share a GPU)")
    assert choosing.tried == ["peers"]


@pytest.mark.parametrize("transport", ["host", "peers", "nccl"])
def test_a_transport_asked_for_is_used_and_no_other_tried(transport):
    choosing = Choosing(ONE_NODE)
    chosen = choosing.choice(transport)
    assert (chosen.name, chosen.reason) == (transport, "asked for")
    assert choosing.tried == ([] if transport == "host" else [transport])


@pytest.mark.parametrize("transport", ["peers", "nccl"])
def test_a_transport_asked_for_that_does_not_work_is_refused(transport):
    choosing = Choosing(ONE_NODE, **{transport: "that does not work"})
    with pytest.raises(DeviceUnavailable, match="that does not work"):
        choosing.choice(transport)


def test_a_cpu_that_works_in_place_needs_no_transport():
    choosing = Choosing(ONE_NODE, device="cpu")
    assert choosing.choice().name == "in place"
    assert choosing.choice("host").name == "in place"


@pytest.mark.parametrize("transport", ["peers", "nccl"])
def test_a_transport_between_gpus_is_refused_where_a_cpu_works_in_place(transport):
    with pytest.raises(DeviceUnavailable, match=f"the transport {transport} cannot be used: a CPU multiplies, and no GPU"):
        Choosing(ONE_NODE, device="cpu").choice(transport)
