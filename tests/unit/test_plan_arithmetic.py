# SPDX-License-Identifier: MIT
"""Which arithmetic a tile gets, what is proved of its errors, how remainders lie in memory; and the numbers of a machine that the
plan assumes, which change a plan and never a product."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import planned
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Topology
from hybrid.errors import UsageError
from hybrid.kernels.sources import KERNELS
from hybrid.plan.arithmetic import BYTES, MODULI, NATIVE, Arithmetic, Summary, choose, largest_error_bound
from hybrid.plan.machine_model import H200, MachineModel

ALONE = Topology(((0,),))
NUMBERS = Summary(3.0, integral=False, in_range=True)


def test_the_moduli_are_coprime_and_those_of_the_kernels():
    assert all(math.gcd(p, q) == 1 for p, q in combinations(MODULI, 2))
    in_kernels = re.search(r"MODULI\[\] = \{([\d, ]+)\}", (KERNELS / "moduli.cuh").read_text())
    assert tuple(map(int, in_kernels[1].split(","))) == MODULI


@pytest.mark.parametrize(
    ("dtype", "fast", "ratio", "moduli"),
    [
        *[("float64", False, 0.5, 15), ("float64", False, 2.0**-6, 15), ("float64", False, 2.0**-7, 0)],
        *[("float64", True, 0.25, 14), ("float64", True, 0.24, 15), ("float64", True, 0.0, 0)],
        *[("float32", False, 0.125, 7), ("float32", True, 0.12, 8), ("float32", False, 2.0**-7, 0)],
    ],
)
def test_the_least_ratio_decides_about_numbers(dtype, fast, ratio, moduli):
    assert choose(NUMBERS, NUMBERS, 1000, dtype, lambda: ratio, fast=fast)[0].moduli == moduli
    infinite = replace(NUMBERS, in_range=False)
    assert choose(NUMBERS.joined(infinite), NUMBERS, 1000, dtype, lambda: ratio, fast=fast) == (NATIVE, None)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("largest", [(2, 1), (127, 127), (128, 1), (1000, 1000), (1 << 21, 1 << 21)])
@pytest.mark.parametrize("inner", [10, 1000, 1 << 18])
def test_integers_are_exact_where_the_moduli_have_room_for_them(largest, inner, dtype):
    a, b = (Summary(float(each), integral=True, in_range=True) for each in largest)
    bound = inner * largest[0] * largest[1]
    arithmetic, error = choose(a, b, inner, dtype, lambda: 1.0, fast=False)
    if bound < 2 ** {"float64": 53, "float32": 24}[dtype]:
        assert (arithmetic.scaled, error) == (False, 0.0)
        assert arithmetic == BYTES or math.prod(MODULI[: arithmetic.moduli]) > 2 * bound
    else:
        assert error > 0
    assert (arithmetic == BYTES) == (max(largest) < 128 and bound < 2**31)


@pytest.mark.parametrize("inner", [100, 1000, 1 << 20])
def test_scaled_products_lie_within_half_of_the_moduli_and_their_errors_are_proved(inner):
    for moduli in (7, 8, 14, 15):  # two lines of the largest norm, each moved by rounding as far as it can be
        assert 2 * (Arithmetic(moduli).limit(inner) + math.sqrt(inner) / 2) ** 2 < math.prod(MODULI[:moduli])
    few, many = (Arithmetic(15).error_bound(inner, "float64", ratio) - 2.0**-53 for ratio in (0.5, 2.0**-6))
    assert few == pytest.approx(2 * 2 * math.sqrt(inner) / Arithmetic(15).limit(inner), rel=1e-2, abs=2e-19)
    assert few <= many < inner * 2.0**-53, "as much is proved of native arithmetic"
    for dtype, fast in (("float64", False), ("float64", True), ("float32", False)):
        most = largest_error_bound(inner, dtype, fast=fast)
        for ratio in (2.0**-exponent for exponent in range(12)):
            arithmetic, error = choose(NUMBERS, NUMBERS, inner, dtype, lambda ratio=ratio: ratio, fast=fast)
            assert error is None if arithmetic == NATIVE else error <= most


# The numbers of a machine

models = st.builds(
    MachineModel,
    **{
        each.name: st.integers(1, 60) if each.metadata["most"] < 100 else st.integers(1, 1 << 60) | st.just(each.default)
        for each in fields(MachineModel)
    },
)


@examples(40)
@given(model=models, memory=st.just(0) | st.integers(200_000, 600_000))
def test_any_model_is_read_as_written_and_has_a_plan(model, memory, tmp_path_factory):
    path = str(tmp_path_factory.getbasetemp() / "model.json")
    model.write(path)
    assert MachineModel.read(path) == model
    how = {"device": "cuda", "accumulates": True, "device_memory": memory, "model": model}
    for share in planned(Problem(300, 200, 100), Topology(((0, 1),)), **how).shares:
        terms = sum(len(tile.rows) * len(tile.columns) * len(tile.inner or range(200)) for tile in share.tiles())
        assert terms == len(share.rows) * 100 * 200


def test_what_a_file_leaves_out_is_an_h200s_and_of_the_doctors_lines_the_last_counts(tmp_path):
    path = tmp_path / "doctor.jsonl"
    path.write_text('{"most_slabs": 4}')
    assert MachineModel.read(str(path)) == replace(H200, most_slabs=4)
    lines = [json.dumps({"command": "doctor", "machine_model": model}) for model in ({"most_slabs": 4}, {"most_slabs": 5}, None)]
    path.write_text("\n".join([*lines, json.dumps({"command": "matmul"})]))
    assert MachineModel.read(str(path)).most_slabs == 5
    for wrong in (lines[2], '{"slab": 1}', '{"most_slabs": 1.5}', '{"most_slabs": -1}', '{"adding_speed": NaN}', "[1]", "", "{"):
        path.write_text(wrong)
        with pytest.raises(UsageError):
            MachineModel.read(str(path))


def test_plans_follow_the_model():
    def share_of(accumulates=True, **changed):
        asked = {"device": "cuda", "accumulates": accumulates, "model": replace(H200, **changed)}
        return planned(Problem(16000, 16000, 16000), ALONE, **asked).shares[0]

    assert share_of().in_slabs
    assert not share_of(least_slab_rows=1 << 20).in_slabs
    assert share_of(adding_speed=1e-6).tiling.interleaved == 1 < share_of().tiling.interleaved
    assert [len(share_of(accumulates=False, most_column_panels=most).column_panels) for most in (1, 8)] == [1, 8]
