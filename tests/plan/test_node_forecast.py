# SPDX-License-Identifier: MIT
"""The simulation of a product on many nodes, against what can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import planned
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Topology
from hybrid.plan.grid import parse, received
from hybrid.plan.machine_model import H200
from hybrid.plan.node_forecast import node_forecast
from hybrid.plan.request import PlanRequest

FOUR_NODES = Topology.of_equal_nodes(8, 2)
FAST = 1e30


def plan_of(problem, grid="rows", topology=FOUR_NODES, **fields):
    parsed = None if grid == "rows" else parse(grid, len(topology.nodes))
    return planned(problem, topology, device="cuda", staged=True, grid=parsed, **fields)


def test_where_the_network_is_slow_its_bytes_are_the_time():
    problem, network = Problem(4000, 4000, 4000), 1e3
    of_each = 8 * 4000**2 / network
    by_rows = node_forecast(plan_of(problem), H200, network, 1.0, 2)
    assert by_rows.a_there == 0
    assert by_rows.b_there == pytest.approx(of_each * 3 / 4)
    assert by_rows.c_there == pytest.approx(of_each * (3 / 4 + 3 / 4), rel=1e-6), "B to the root's node, then C"
    on_grid = node_forecast(plan_of(problem, "2x2"), H200, network, 1.0, 2)
    assert on_grid.a_there == pytest.approx(of_each / 4), "half of A, of which half is there"
    assert on_grid.b_there == pytest.approx(of_each * (1 / 4 + 3 / 8)), "half of B, of which a quarter is there"


def test_where_the_network_is_fast_the_gpus_are_the_time():
    problem = Problem(8000, 8000, 8000)
    slow = replace(H200, float64_multiply_adds_per_byte=1.0)
    of_one = 8000**3 / slow.link_bytes_per_second
    for grid in ("rows", "2x2"):
        for gpus in (1, 2):
            expected = node_forecast(plan_of(problem, grid), slow, FAST, 1.0, gpus)
            assert expected.multiplied == pytest.approx(of_one / 4 / gpus, rel=0.02)
            assert node_forecast(plan_of(problem, grid), slow, FAST, 2.0, gpus).multiplied < 0.6 * expected.multiplied


def test_what_is_on_the_gpus_already_need_not_go_there():
    plan, nowhere = plan_of(Problem(4000, 4000, 4000)), replace(H200, float64_multiply_adds_per_byte=1e9)
    by = {name: node_forecast(plan.with_transport(name), nowhere, FAST, 1.0, 2).multiplied for name in ("host", "peers", "nccl")}
    assert by["nccl"] < by["peers"] < by["host"]


def test_c_of_other_nodes_crosses_the_links_of_the_roots_gpus_where_it_comes_from_gpu_to_gpu():
    plan = plan_of(Problem(8000, 8, 8000)).with_transport("nccl")
    by_links = node_forecast(plan, H200, FAST, 1.0, 2).c_there
    assert by_links == pytest.approx(8 * 8000**2 * 3 / 4 / (2 * H200.link_bytes_per_second), rel=0.3)
    assert node_forecast(plan, H200, FAST, 1.0, 4).c_there < 0.6 * by_links
    of_network = 8 * 8000**2 * 3 / 4 / 1e6
    assert node_forecast(plan, H200, 1e6, 1.0, 2).c_there == pytest.approx(of_network, rel=0.01)


@examples(50)
@given(
    st.builds(Problem, st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000)),
    st.sampled_from(["rows", "2x2", "4x1", "1x2x2"]),
    st.floats(1e6, 1e12),
)
def test_nothing_is_there_before_its_bytes_can_be(problem, grid, network):
    plan = plan_of(problem, grid)
    expected = node_forecast(plan, H200, network, 1.0, 2)
    placement = PlanRequest(problem, FOUR_NODES).placement
    layout_grid = plan.grid_layout.grid if plan.grid_layout else parse("rows", 4)
    for node in range(4):
        least = 8 * received(layout_grid, node, problem, FOUR_NODES, placement) / network
        assert expected.c_there >= 0.999 * least
    assert expected.a_there <= expected.b_there <= expected.multiplied <= expected.c_there
