"""Which road is taken where, on made-up machines: what works there is said by the test."""

from __future__ import annotations

import pytest

from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, Topology
from hybrid.devices.cuda_gpus import Gpu
from hybrid.errors import DeviceUnavailable
from hybrid.kernels.catalogue import named
from hybrid.plan.plan import make_plan
from hybrid.ranks.team import Team
from hybrid.transport import build
from hybrid.transport.build import choose_transport
from hybrid.transport.rank_device import RankDevice

LARGE, SMALL = Problem(2000, 2000, 2000), Problem(200, 200, 200)


class Machine:
    """What its ranks find when they try: `peers` and `nccl` are why a test fails, empty where it passes."""

    def __init__(self, monkeypatch, nodes, *, peers="", nccl="", gpus=None, **more):
        self.tried = []
        self.plan = make_plan(**{"problem": LARGE, "topology": Topology(nodes), "device": "cuda", **more})
        size = self.plan.topology.size
        self.gpus = [Gpu(0, f"GPU-{uuid}", "made up") for uuid in gpus or range(size)] if self.plan.device == "cuda" else [None]
        self.team = Team()
        self.team.topology = self.plan.topology
        self.place = RankDevice(("any",), device=None)
        monkeypatch.setattr(build, "_rank_device_to_probe", lambda *these: self.place)
        monkeypatch.setattr(self.place, "probe", lambda team: self._try("peers", peers))
        monkeypatch.setattr(self.place.device_group, "init_communicator", lambda team: self._try("nccl", nccl))

    def _try(self, what, failure):
        self.tried.append(what)
        if failure:
            raise DeviceUnavailable(failure)

    def choice(self, transport="auto"):
        return choose_transport(self.team, self.plan, Settings(transport=transport), self.gpus, named("naive"))


ONE_NODE, TWO_NODES, ONE_EACH = ((0, 1),), ((0, 1), (2, 3)), ((0,), (1,))


def test_peers_come_first(monkeypatch):
    machine = Machine(monkeypatch, ONE_NODE)
    assert machine.choice().name == "peers"
    assert machine.tried == ["peers"]


def test_nccl_helps_the_ranks_of_one_node_that_do_not_reach_each_other(monkeypatch):
    machine = Machine(monkeypatch, ONE_NODE, peers="closed doors")
    for _ in range(2):
        choice = machine.choice()
        assert choice.name == "nccl"
        assert choice.reason == (
            "the GPUs of a node cannot reach each other (closed doors), but NCCL brought every rank's data to every other"
        )
    assert machine.tried == ["peers", "nccl", "nccl"]  # a refusal is remembered; whether all are still joined is asked


def test_without_either_the_host_road_is_taken_and_both_reasons_told(monkeypatch):
    machine = Machine(monkeypatch, ONE_NODE, peers="closed doors", nccl="no library")
    for _ in range(2):
        choice = machine.choice()
        assert choice.name == "host"
        assert choice.reason == "the GPUs of a node cannot reach each other (closed doors), nor can NCCL help (no library)"
    assert machine.tried == ["peers", "nccl"]


def test_between_several_nodes_of_several_ranks_nccl_is_not_tried(monkeypatch):
    machine = Machine(monkeypatch, TWO_NODES)
    assert machine.choice().name == "peers"
    machine = Machine(monkeypatch, TWO_NODES, peers="closed doors")
    choice = machine.choice()
    assert (choice.name, choice.reason) == ("host", "the GPUs of a node cannot reach each other (closed doors)")
    rows = tuple(Span(500 * rank, 500 * (rank + 1)) for rank in range(4))
    machine = Machine(monkeypatch, TWO_NODES, resident_rows=(rows, rows))
    choice = machine.choice()
    assert (choice.name, choice.reason) == ("host", "rows of B lie on other nodes")
    assert machine.tried == []


def test_with_one_rank_a_node_nccl_comes_first(monkeypatch):
    machine = Machine(monkeypatch, ONE_EACH)
    choice = machine.choice()
    assert choice.name == "nccl"
    assert choice.reason == "one rank a node has no peers, but NCCL brought every rank's data to every other"
    machine = Machine(monkeypatch, ONE_EACH, nccl="no library")
    choice = machine.choice()
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
def test_what_hinders_nccl_is_seen_before_it_is_started(monkeypatch, hindrance):
    machine_is, reason = HINDRANCES[hindrance]
    machine = Machine(monkeypatch, **machine_is)
    assert machine.choice().name == "host"
    assert machine.tried == []
    if reason is None:
        assert machine.choice("nccl") == build.TransportChoice("nccl", "asked for")
        return
    with pytest.raises(DeviceUnavailable, match=f"^the road nccl cannot be taken: {reason}"):
        machine.choice("nccl")
    assert machine.tried == []


def test_ranks_of_a_node_that_share_a_gpu_are_told_so_where_peers_fail_too(monkeypatch):
    machine = Machine(monkeypatch, ONE_NODE, peers="closed doors", gpus="aa")
    assert machine.choice().reason.endswith("nor can NCCL help (ranks 0 and 1 share a GPU)")
    assert machine.tried == ["peers"]


@pytest.mark.parametrize("transport", ["host", "peers", "nccl"])
def test_a_road_asked_for_is_taken_and_no_other_tried(monkeypatch, transport):
    machine = Machine(monkeypatch, ONE_NODE)
    assert machine.choice(transport) == build.TransportChoice(transport, "asked for")
    assert machine.tried == ([] if transport == "host" else [transport])


@pytest.mark.parametrize("transport", ["peers", "nccl"])
def test_a_road_asked_for_that_does_not_work_is_refused(monkeypatch, transport):
    machine = Machine(monkeypatch, ONE_NODE, **{transport: "that does not work"})
    with pytest.raises(DeviceUnavailable, match="that does not work"):
        machine.choice(transport)


def test_a_cpu_that_works_in_place_takes_no_road(monkeypatch):
    machine = Machine(monkeypatch, ONE_NODE, device="cpu")
    assert machine.choice("nccl").name == "in place"
