# SPDX-License-Identifier: MIT
"""One decision: what `--explain` says of a machine is what a run decides there, however little its ranks know at first."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machines import RanksOn
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, block
from hybrid.errors import DeviceUnavailable, HybridError
from hybrid.plan.request import OperandLocation, RowBlocks
from hybrid.selection import agreement
from hybrid.selection.agreement import agree
from hybrid.selection.decision import ProductRequest, decide
from hybrid.selection.machine import Test, assumed_machine

MiB = 1 << 20

sizes = st.sampled_from([0, 1, 7, 100, 600, 2000])
problems = st.one_of(
    st.builds(Problem, sizes, sizes, sizes, st.sampled_from(["float32", "float64"])),
    st.builds(Problem, sizes, sizes, sizes, st.just("float32"), st.sampled_from(["float16", "bfloat16"])),
)
chosen = st.builds(
    Settings,
    device=st.sampled_from(["auto", "auto", "cpu", "cuda", "emulate"]),
    kernel=st.sampled_from(["auto", "auto", "blas", "loops", "naive", "tensor", "tensor_half", "matvec_warp", "cublas"]),
    transport=st.sampled_from(["auto", "auto", "host", "peers", "nccl"]),
    staged=st.booleans(),
    check=st.sampled_from(["on", "host", "off"]),
    panel_rows=st.sampled_from([0, 0, 33]),
    panel_columns=st.sampled_from([0, 0, 40]),
    slab_rows=st.sampled_from([0, 0, 64]),
    ranks_per_node=st.sampled_from([0, 1, 2, 4]),
    grid=st.sampled_from(["auto", "auto", "rows", "1x2", "2x2", "1x1x3", "2xx"]),
    host_memory=st.sampled_from([0, 300 * MiB, 4096 * MiB]),
    gpu_memory=st.sampled_from([0, 1 * MiB, 40 * MiB, 900 * MiB]),
)


def outcome(deed):
    """What came of it: a decision, or the error as a user sees it."""
    try:
        return deed()
    except HybridError as error:
        return type(error), str(error)


@settings(max_examples=250)
@given(
    problem=problems,
    asked=chosen,
    ranks=st.integers(1, 6),
    gpus_per_node=st.integers(0, 4),
    capability=st.sampled_from([0, 61, 80, 90]),
    location=st.sampled_from(OperandLocation),
    failing=st.sets(st.sampled_from(Test)),
)
def test_what_is_explained_is_what_would_run(problem, asked, ranks, gpus_per_node, capability, location, failing):
    machine = assumed_machine(asked, ranks, gpus_per_node, capability)
    machine.outcomes.update(dict.fromkeys(failing, "it failed"))
    blocks = RowBlocks(*(tuple(block(rows, ranks, rank) for rank in range(ranks)) for rows in (problem.n, problem.l)))
    request = ProductRequest(problem, location, row_blocks=blocks if location is OperandLocation.ROW_BLOCKS else None)
    session = RanksOn(machine)

    def run():
        with patch.object(agreement, "free_memory_of"):  # this process has no GPU to ask; the session has the answers
            return agree(session, request, asked, session.inventories())

    def explained():
        decision = decide(machine, request, asked)
        if decision.shortage:
            raise agreement.DoesNotFit(decision.shortage)
        decision.plan.refuse_endless()
        return decision

    assert outcome(run) == outcome(explained)
    assert len(session.tried) == len(set(session.tried)), "nothing is found out twice"


def decided(problem, **how):
    asked = Settings(**how)
    return decide(assumed_machine(asked, 2, gpus_per_node=2), ProductRequest(problem), asked).plan


@examples(50)
@given(problem=problems, part=st.floats(0.05, 1.2))
def test_buffers_and_check_fit_on_the_gpu_together(problem, part):
    uncut = decided(problem, check="on")
    memory = max(MiB, int(part * uncut.bytes_on_gpu(0)))
    checked, unchecked = (decided(problem, check=check, gpu_memory=memory) for check in ("on", "off"))
    assert uncut.check == "device"
    # A product that fits unchecked fits checked: where the check's sums find no room, the host checks.
    if unchecked.bytes_on_gpu(0) <= memory:
        assert checked.check in ("device", "host")
        assert checked.bytes_on_gpu(0) <= memory


@pytest.mark.parametrize(
    ("location", "capability", "how", "kernel", "operands"),
    [
        (OperandLocation.ROOT_ARRAYS, 90, {}, "tensor_half", "bfloat16"),
        (OperandLocation.ROOT_ARRAYS, 80, {"check": "off"}, "tensor_half", "bfloat16"),
        (OperandLocation.ROOT_ARRAYS, 90, {"kernel": "cublas"}, "cublas", "bfloat16"),
        (OperandLocation.ROOT_ARRAYS, 75, {}, "register_tiled", "float32"),
        (OperandLocation.ROOT_ARRAYS, 90, {"kernel": "warp_tiled"}, "warp_tiled", "float32"),
        (OperandLocation.ROOT_ARRAYS, 90, {"device": "cpu"}, "blas", "float32"),
        (OperandLocation.ROOT_ARRAYS, 90, {"transport": "host"}, "tensor_half", "bfloat16"),
        (OperandLocation.ROOT_ARRAYS, 90, {"ranks_per_node": 1}, "warp_tiled", "float32"),
        (OperandLocation.NODE_SHARED, 90, {}, "tensor_half", "bfloat16"),
        (OperandLocation.NODE_SHARED, 90, {"precision": "fast"}, "warp_tiled", "float32"),
    ],
)
def test_operands_of_16_bits_stay_so_on_gpus_of_one_node_that_can(location, capability, how, kernel, operands):
    asked, problem = Settings(**how), Problem(3000, 3000, 3000, "float32", "bfloat16")
    decision = decide(assumed_machine(asked, 2, 2, capability), ProductRequest(problem, location), asked)
    planned = decision.plan.problem
    assert (decision.kernel.name, planned.operand_dtype, planned.dtype) == (kernel, operands, "float32")


def test_operands_of_16_bits_take_half_of_the_room():
    asked = Settings(precision="native")
    short, wide = (
        decide(assumed_machine(asked, 1, 1, 90), ProductRequest(problem, OperandLocation.ROOT_ARRAYS), asked).plan
        for problem in (Problem(4096, 4096, 4096, "float32", each) for each in ("float16", ""))
    )
    assert (short.bytes_of_buffers(0), wide.bytes_of_buffers(0)) == ((2 + 2 + 4) * 4096**2, (4 + 4 + 4) * 4096**2)
    assert short.bytes_on_node(0) < wide.bytes_on_node(0)


def test_where_buffers_fit_and_their_check_does_not_the_check_takes_fewer_sums():
    problem = Problem(4000, 4000, 4000)
    uncut = decided(problem, check="on")
    cut = decided(problem, check="on", gpu_memory=uncut.bytes_on_gpu(0) - 1)
    assert cut.check == "device"
    assert cut.shares[0].holds_all
    assert cut.bytes_of_buffers(0) == uncut.bytes_of_buffers(0)
    assert 0 < cut.bytes_of_device_check(0) < uncut.bytes_of_device_check(0)


def test_the_buffers_of_row_blocks_leave_room_for_what_is_made_of_b_on_the_gpu():
    problem, rows = Problem(4000, 4000, 4000), (Span(0, 2000), Span(2000, 4000))
    asked = Settings(gpu_memory=400 * MiB)
    decisions = [
        decide(
            assumed_machine(asked, 2, gpus_per_node=2),
            ProductRequest(problem, OperandLocation.ROW_BLOCKS, row_blocks=RowBlocks(rows, rows), besides_on_gpu=besides),
            asked,
        )
        for besides in ((), (100 * MiB, 100 * MiB), (401 * MiB, 0))
    ]
    plans = [each.plan for each in decisions]
    assert [bool(each.shortage) for each in decisions] == [False, False, True]
    of_c = problem.bytes(2000, 4000)
    assert plans[0].bytes_on_gpu(0) + of_c > 300 * MiB
    assert plans[1].bytes_on_gpu(0) + of_c <= 300 * MiB


def test_a_machine_that_lacks_nothing_is_decided_at_once():
    asked = Settings()
    session = RanksOn(assumed_machine(asked, 2))
    decision = agree(session, ProductRequest(Problem(10, 10, 10)), asked, session.machine.ranks)
    assert (decision.plan.device, decision.plan.transport, session.tried) == ("cpu", "in place", [])


def test_nccl_is_not_chosen_where_only_its_larger_buffers_do_not_fit():
    problem, nodes = Problem(4000, 4000, 4000), {"ranks_per_node": 1, "device": "cuda", "precision": "native"}

    def decision_with(memory, transport="auto"):
        asked = Settings(gpu_memory=memory, transport=transport, **nodes)
        return decide(assumed_machine(asked, 2, 1, 90), ProductRequest(problem), asked)

    enough = decision_with(0).plan
    assert enough.transport == "nccl"
    by_host = enough.with_transport("host")
    assert enough.bytes_on_gpu(0) > by_host.bytes_on_gpu(0) + 50 * MiB, "slots for C of the other node"
    chosen = []
    for memory in range(by_host.bytes_on_gpu(0), enough.bytes_on_gpu(0) + MiB, 4 * MiB):
        decision = decision_with(memory)
        assert not decision.shortage, memory
        chosen.append(decision.plan.transport)
        assert decision_with(memory, "host").plan.bytes_of_device_check(0) == by_host.bytes_of_device_check(0), "as where none is"
    assert {*chosen} == {"host", "nccl"}
    with pytest.raises(DeviceUnavailable, match="the transport nccl cannot be used: the devices have no room for what it needs"):
        decision_with(by_host.bytes_on_gpu(0) + MiB, "nccl")
