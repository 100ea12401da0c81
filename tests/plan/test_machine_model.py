# SPDX-License-Identifier: MIT
"""The plan's numbers of a machine: read from files, refused when they make no sense, and used."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.core.problem import Problem
from hybrid.core.spans import Topology
from hybrid.errors import UsageError
from hybrid.plan import machine_model
from hybrid.plan.machine_model import H200, MachineModel
from hybrid.plan.planning import make_plan
from hybrid.plan.request import PlanRequest

models = st.builds(
    MachineModel,
    **{
        known.name: st.integers(1, 60) if known.metadata["most"] < 100 else st.integers(1, 1 << 60) | st.just(known.default)
        for known in fields(MachineModel)
    },
)


@given(model=models)
def test_what_was_written_is_read(model, tmp_path_factory):
    path = str(tmp_path_factory.getbasetemp() / "model.json")
    model.write(path)
    assert MachineModel.read(path) == model


def test_what_a_file_leaves_out_is_an_h200s(tmp_path):
    path = tmp_path / "model.json"
    path.write_text('{"most_slabs": 4}')
    assert MachineModel.read(str(path)) == replace(H200, most_slabs=4)
    assert MachineModel.of("") == H200


def test_of_the_doctors_lines_the_last_with_a_model_is_read(tmp_path):
    path = tmp_path / "doctor.jsonl"
    models = [{"most_slabs": 4}, {"most_slabs": 5}, None]
    lines = [json.dumps({"schema": 1, "command": "doctor", "machine_model": model}) for model in models]
    path.write_text("\n".join([*lines, json.dumps({"command": "matmul"})]) + "\n")
    assert MachineModel.read(str(path)).most_slabs == 5
    path.write_text(lines[0])
    assert MachineModel.read(str(path)).most_slabs == 4
    path.write_text(lines[2])
    with pytest.raises(UsageError, match="has no line with a machine_model"):
        MachineModel.read(str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"slab": 1}', "'slab' is no field of a machine model"),
        ('{"most_slabs": "1"}', "most_slabs must be a whole number, not '1'"),
        ('{"most_slabs": true}', "most_slabs must be a whole number, not True"),
        ('{"most_slabs": 1.5}', "most_slabs must be a whole number, not 1.5"),
        ('{"most_slabs": -1}', "most_slabs must be from 1 to"),
        ('{"adding_speed": NaN}', "adding_speed must be from 1e-06 to"),
        ('{"adding_speed": -0.5}', "adding_speed must be from 1e-06 to"),
        ('{"adding_speed": null}', "adding_speed must be a number, not None"),
        ('{"least_streamed_panels": 1000}', "least_streamed_panels must be from 1 to 64"),
        ('{"most_slabs": 1' + "0" * 400 + "}", "most_slabs must be from 1 to"),
        ("[1]", "holds no JSON object"),
        ("", "holds no JSON object"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        (b"\xff", "is no JSON"),
    ],
    ids=range(15),
)
def test_what_is_no_model_is_refused_in_one_line(tmp_path, text, said):
    path = tmp_path / "model.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=said) as refused:
        MachineModel.read(str(path))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300 + len(str(path))


def test_files_that_are_missing_or_too_large_are_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"cannot be read: .*No such file"):
        MachineModel.read(str(tmp_path / "none.json"))
    with pytest.raises(UsageError, match="cannot be read"):
        MachineModel.read(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")  # to which nobody writes
    with pytest.raises(UsageError, match="cannot be read: it is no regular file"):
        MachineModel.read(str(tmp_path / "pipe"))
    monkeypatch.setattr(machine_model, "LARGEST_FILE", 10)
    (tmp_path / "large.json").write_text(json.dumps(asdict(H200)))
    with pytest.raises(UsageError, match="is larger than"):
        MachineModel.read(str(tmp_path / "large.json"))


def test_every_number_says_what_it_is_and_where_it_comes_from():
    for known in fields(MachineModel):
        text = known.metadata["help"]
        assert any(word in text for word in ("measured", "estimated", "counted", "reasoned")), known.name


def test_narrow_rows_reach_the_promised_parts_of_the_links_rate():
    overhead = H200.panel_row_overhead_bytes
    assert (H200.panel_row_bytes, H200.streamed_panel_row_bytes) == (16 << 10, 24 << 10)
    assert H200.panel_row_bytes / (H200.panel_row_bytes + overhead) == pytest.approx(4 / 5)
    assert H200.streamed_panel_row_bytes / (H200.streamed_panel_row_bytes + overhead) == pytest.approx(6 / 7)


def share_of(model, **more):
    how = {"device": "cuda", "accumulates": True, **more}
    return make_plan(PlanRequest(Problem(16000, 16000, 16000), Topology(((0,),)), model=model, **how)).shares[0]


def test_plans_follow_the_model():
    assert share_of(H200).in_slabs
    assert not share_of(replace(H200, least_slab_rows=1 << 20)).in_slabs
    assert share_of(replace(H200, adding_speed=1e-6)).tiling.interleaved == 1 < share_of(H200).tiling.interleaved
    column_panels = [len(share_of(replace(H200, most_column_panels=most), accumulates=False).column_panels) for most in (1, 8)]
    assert column_panels == [1, 8]


def test_row_panels_come_in_turn_with_slabs_as_long_as_they_hide_copies_and_delay_none():
    slower, faster = (replace(H200, float64_multiply_adds_per_byte=each) for each in (1900.0, 128.0))
    assert share_of(slower).tiling.interleaved < share_of(H200).tiling.interleaved
    assert share_of(faster).tiling.interleaved < share_of(H200).tiling.interleaved, "less work is there for each byte"


@examples(40)
@given(model=models, memory=st.just(0) | st.integers(200_000, 600_000))
def test_any_model_has_a_plan(model, memory):
    problem = Problem(300, 200, 100)
    how = {"device": "cuda", "accumulates": True, "device_memory": memory}
    plan = make_plan(PlanRequest(problem, Topology(((0, 1),)), model=model, **how))
    for share in plan.shares:
        computed = sum(len(tile.rows) * len(tile.columns) * len(tile.inner or range(200)) for tile in share.tiles())
        assert computed == len(share.rows) * 100 * 200
