# SPDX-License-Identifier: MIT
"""`hybrid.doctor --json FILE` measures a machine's numbers, and HYBRID_MACHINE=FILE plans with them, as with
hand-written JSON. What a product needs is forecast before anything is allocated (docs/cluster.md, Does it fit?).
"""

import json
import re

import pytest
from support.commands import ROOT, module, own_lines, start
from support.forked import quickly
from support.selection import exhaustive

import hybrid.testing

PAGE = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
ASSUMED = ["--ranks", "8", "--gpus-per-node", "8", "--gpu-memory", "141G"]
LINK = re.compile(r"by a link of ([\d.]+) GB/s")


def explained(*arguments, sizes=(100_000,) * 3, **environment):
    return quickly(module("hybrid.matmul"), *sizes, "--explain", *ASSUMED, *arguments, **environment)


def test_the_pages_example_is_what_the_command_prints():
    """Also the size of the processes, which is another one with other versions of MPI and Python."""
    example = PAGE.partition("## Does it fit?")[2].partition("```text\n")[2].partition("```")[0]
    done = explained()
    assert done.returncode == 0, done.stderr
    memory = re.compile(r"\S+ [KMGT]iB with its processes \(.*\)")
    printed = [memory.sub("", line) for line in done.stdout.splitlines()]
    assert [line for line in example.splitlines() if memory.sub("", line) not in printed] == []


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("", None),
        ('{"link_bytes_per_second": 25e9}', "25"),
        ("LINES", "12.5"),  # as the doctor writes them: the last line with a model counts
    ],
)
def test_the_plan_uses_the_files_numbers_and_an_h200s_for_the_rest(tmp_path, text, rate):
    path = tmp_path / "machine.json"
    lines = [{"link_bytes_per_second": 10e9}, {"link_bytes_per_second": 12.5e9}, None]
    recorded = [json.dumps({"schema": 1, "command": "doctor", "machine_model": model}) for model in lines]
    path.write_text("\n".join([*recorded, json.dumps({"command": "matmul"})]) + "\n" if text == "LINES" else text)
    done = explained(**({"HYBRID_MACHINE": str(path)} if text else {}))
    assert done.returncode == 0, done.stderr
    assert LINK.search(done.stdout)[1] == (rate or "54.8")


@pytest.mark.parametrize(
    "text",
    exhaustive(
        ["{", '{"nonsense": 1}', '{"link_bytes_per_second": -1}', ""],
        ["{", '{"nonsense": 1}', '{"link_bytes_per_second": -1}', "", "[]", '{"link_bytes_per_second": "fast"}',
         '{"link_bytes_per_second": null}', '{"command": "doctor"}', '{"most_slabs": 1.5}', '{"adding_speed": NaN}'],
    ),
)  # fmt: skip
def test_a_file_that_is_no_machine_is_refused_before_anything_runs(tmp_path, text):
    path = tmp_path / "machine.json"
    path.write_text(text)
    done = explained(HYBRID_MACHINE=str(path))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = own_lines(done.stderr)
    assert line.endswith("[machine-model]")
    assert str(path) in line
    assert own_lines(explained(HYBRID_MACHINE=str(tmp_path / "none")).stderr)[0].endswith("[machine-model]")


@pytest.mark.launcher
def test_ranks_with_other_numbers_are_refused_and_named(tmp_path):
    files = [tmp_path / f"{rate}.json" for rate in (25, 12)]
    for path in files:
        path.write_text(json.dumps({"link_bytes_per_second": float(path.stem) * 1e9}))
    each = [["env", f"HYBRID_MACHINE={path}", *module("hybrid.matmul"), "8", "8", "8"] for path in files]
    done = start([*hybrid.testing.mpirun(1), *each[0], ":", "-n", "1", *each[1]])
    assert done.returncode == 2
    (line,) = own_lines(done.stderr)
    assert "rank 1" in line
    assert line.endswith("[ranks-differ]")


@pytest.mark.gpu
def test_a_gpus_numbers_are_measured_and_planned_with(tmp_path):
    path = tmp_path / "doctor.jsonl"
    assert start(module("hybrid.doctor"), "--json", path, limit=300).returncode == 0
    measured = json.loads(path.read_text())["machine_model"]
    done = explained(HYBRID_MACHINE=str(path))
    assert LINK.search(done.stdout)[1] == f"{measured['link_bytes_per_second'] / 1e9:.3g}"
