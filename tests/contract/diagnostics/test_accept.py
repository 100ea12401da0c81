# SPDX-License-Identifier: MIT
"""`python -m hybrid.accept` tells which rank's device is wrong or slow, and a wrong device from wrong data: rank i multiplies row
block (i + r) mod P in round r, so a device is wrong with several blocks, and data on several ranks (docs/cluster.md).

A healthy job ends with 0, a finding or a failure with 1, wrong usage with 2, and a job that was asked to end with 143. Faults are
planted by hybrid.testing, below the command.
"""

import json
import re

import pytest
from support.commands import ROOT, module, own_lines, start
from support.forked import quickly
from support.selection import exhaustive

COMMAND = module("hybrid.accept")
EVEN = "clock how=even"  # all ranks are as fast, whatever else the machine does
PAGE = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
launcher = pytest.mark.launcher


def accepted(*arguments, faults=(), pretend=(), ranks=0, level=1, folder=None, **environment):
    """The command with these faults, on CPUs: how it ended, its lines, and its record."""
    planted = [part for fault in faults for part in ("--plant", fault)]
    planted += [part for each in pretend for part in ("--pretend", each)]
    command = [*module("hybrid.testing"), *planted, "-m", "hybrid.accept"] if planted else COMMAND
    record = folder / "record.jsonl" if folder else None
    done = quickly(
        *(command, *arguments, "--level", level, "--device", "cpu", "--threads", 1, *(["--json", record] if record else [])),
        **{"ranks": ranks, "limit": 300, **environment},
    )
    return done, json.loads(record.read_text().splitlines()[-1]) if record and record.exists() else None


def codes(record, verdict="wrong"):
    return [finding["code"] for finding in record["findings"] if finding["verdict"] == verdict]


def blocks_by_rank(record):
    """The row blocks with which each rank was wrong."""
    found = {}
    for each in record["wrong"]:
        found.setdefault(each["rank"], set()).add(each["block"])
    return found


def named(done):
    """The ranks that begin the lines of what is wrong, each with the code at the end of its line."""
    return re.findall(r"^WRONG +\w[\w ]*  rank (\d+) on .* \[([a-z-]+)\]$", done.stdout, re.MULTILINE)


@launcher
@pytest.mark.parametrize("ranks", exhaustive([0, 2], [0, 1, 2, 3, 4]))
def test_a_healthy_job_is_accepted_and_each_block_was_on_each_rank(ranks, tmp_path):
    done, record = accepted(faults=[EVEN], ranks=ranks, folder=tmp_path)
    size = max(1, ranks)
    assert (done.returncode, own_lines(done.stderr)) == (0, []), done.stdout + done.stderr
    assert (record["ok"], codes(record), record["wrong"]) == (True, [], [])
    assert (record["command"], record["ranks"], record["level"], record["device"]) == ("accept", size, 1, "cpu")
    assert record["products"] == 3 * (size + 1)  # a warm-up, and a round for each block, of three products
    assert record["rotations"] == 1
    assert [len(case["ranks"]) for case in record["multiply"]] == [size]
    *lines, last = done.stdout.splitlines()
    assert last.startswith("accepted: ")
    assert [line.split()[0] for line in lines] == [finding["verdict"] for finding in record["findings"]]
    assert [placement["rank"] for placement in record["placements"]] == list(range(size))


@launcher
@pytest.mark.parametrize(("ranks", "rank"), exhaustive([(2, 1)], [(2, 0), (2, 1), (3, 0), (3, 2)]))
def test_a_wrong_device_is_wrong_with_every_block_and_the_test_goes_on(tmp_path, ranks, rank):
    done, record = accepted(faults=[EVEN, f"multiply rank={rank} times=None"], ranks=ranks, folder=tmp_path)
    assert (done.returncode, record["ok"], codes(record)) == (1, False, ["wrong-device"]), done.stdout + done.stderr
    assert named(done) == [(str(rank), "wrong-device")]
    assert blocks_by_rank(record) == {rank: set(range(ranks))}
    assert {each["code"] for each in record["wrong"]} == {"check-product"}
    assert record["rotations"] == 1
    assert done.stdout.splitlines()[-1].startswith("not accepted: ")


# Spoils each product of the row block that rank BLOCK multiplies first, on whichever rank: its data are at fault, no device.
FAULTY_DATA = """\
import hashlib, os, pathlib
rank = int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
seen = []
def spoil(into, source, before):
    kept = pathlib.Path(os.environ["TEST_FOLDER"], "block")
    rows = hashlib.sha256(source[0].tobytes()).hexdigest()
    if not seen and rank == int(os.environ["TEST_BLOCK"]):
        kept.with_suffix(".new").write_text(rows)
        kept.with_suffix(".new").replace(kept)
    seen.append(rows)
    if kept.exists() and kept.read_text() == rows:
        into[3, 5] += 1
"""


@launcher
@pytest.mark.parametrize(("ranks", "block"), exhaustive([(2, 1)], [(2, 0), (2, 1), (3, 1), (3, 2)]))
def test_wrong_data_follow_their_block_and_no_device_is_blamed(tmp_path, ranks, block):
    (tmp_path / "faults.py").write_text(FAULTY_DATA)
    fault = f"multiply times=None how={tmp_path}/faults.py:spoil"
    environment = {"TEST_FOLDER": str(tmp_path), "TEST_BLOCK": str(block)}
    done, record = accepted(faults=[EVEN, fault], ranks=ranks, folder=tmp_path, **environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert blocks_by_rank(record) == {rank: {block} for rank in range(ranks)}
    assert codes(record) == ["wrong-rows"] * ranks
    assert named(done) == [(str(rank), "wrong-rows") for rank in range(ranks)]


@launcher
@pytest.mark.parametrize(
    ("fault", "pretend", "code", "rank"),
    [
        ("arrive rank=1 times=None", "ranks_per_node=1", "check-product", 1),
        pytest.param("copy in rank=1 times=None", "staged=1", "check-copy", 1, marks=pytest.mark.exhaustive),
        ("copy out rank=0 times=None", "staged=1", "check-copy", 0),
    ],
)
def test_what_comes_to_a_rank_wrong_is_its_own_and_a_copy_is_told_from_a_product(tmp_path, fault, pretend, code, rank):
    done, record = accepted(faults=[EVEN, fault], pretend=[pretend], ranks=2, folder=tmp_path)
    assert (done.returncode, codes(record)) == (1, ["wrong-device"]), done.stdout + done.stderr
    assert {(each["rank"], each["code"]) for each in record["wrong"]} == {(rank, code)}


@pytest.mark.parametrize("variable", ["HYBRID_CHECK=off", "HYBRID_ON_FAULT=repair"])
def test_products_are_checked_and_not_repaired_whatever_the_environment_says(tmp_path, variable):
    name, _, value = variable.partition("=")
    done, record = accepted(faults=["multiply times=None"], folder=tmp_path, **{name: value})
    assert (done.returncode, codes(record)) == (1, ["wrong-device"])


@launcher
@pytest.mark.parametrize(("ranks", "rank"), exhaustive([(2, 0)], [(2, 0), (2, 1), (3, 2)]))
def test_a_slow_rank_is_named_and_no_other(tmp_path, ranks, rank):
    done, record = accepted(faults=[f"clock rank={rank} how=slow 4"], ranks=ranks, folder=tmp_path)
    assert (done.returncode, codes(record)) == (1, ["slow-rank"]), done.stdout + done.stderr
    assert named(done) == [(str(rank), "slow-rank")]
    medians = [spread["median"] for spread in record["multiply"][0]["ranks"]]
    assert medians == [pytest.approx(4 if each == rank else 1, rel=0.01) for each in range(ranks)]


@launcher
@pytest.mark.parametrize("ranks", exhaustive([2], [0, 2]))
def test_a_job_that_is_asked_to_end_reports_what_it_has_and_ends_with_143(tmp_path, ranks):
    """The signal comes within a product: the round that has begun is finished, and no other begins."""
    faults = [EVEN, f"rank rank={max(0, ranks - 1)} phase=multiply at=4 how=SIGTERM"]
    done, record = accepted("--minutes", 1, faults=faults, ranks=ranks, folder=tmp_path)
    assert (record["ok"], codes(record)) == (True, []), done.stdout + done.stderr
    assert record["rotations"] == 0 if ranks else 1
    assert record["products"] < 3 * (max(1, ranks) + 1) + 1
    assert done.stdout.splitlines()[-1].startswith("accepted: ")
    assert done.returncode == 143


@launcher
@pytest.mark.parametrize(
    ("how", "status", "code"),
    exhaustive(
        [("memory", 1, "out-of-memory"), ("SIGKILL", 137, "killed")],
        [("raise", 1, "rank-failed"), ("memory", 1, "out-of-memory"), ("SIGKILL", 137, "killed")],
    ),
)
def test_a_failure_that_is_no_wrong_product_ends_the_job_in_one_line(how, status, code):
    done, _ = accepted(faults=[f"rank rank=1 phase=multiply how={how}"], ranks=2)
    assert done.returncode == status
    (line,) = own_lines(done.stderr)
    assert re.search(rf"rank 1 on \S+, multiply: .* \[{code}\]$", line), line


def sizes_in_the_page(level):
    """The sizes of a level on CPUs, as docs/cluster.md's table has them."""
    (cell,) = re.findall(rf"^\| {level}(?: \(default\))? \| (.*?) \|", PAGE, re.MULTILINE)
    return [tuple(map(int, size.split("×"))) for size in re.findall(r"\d+×\d+×\d+", cell)]


@pytest.mark.parametrize("level", exhaustive([2], [1, 2, 3]))
def test_a_level_has_the_sizes_and_types_of_the_page_and_large_squares_where_there_is_time(level, tmp_path):
    done, record = accepted("--minutes", 0, level=level, folder=tmp_path, faults=[EVEN])
    assert done.returncode == 0, done.stdout + done.stderr
    types = ["float64"] if level == 1 else ["float32", "float64"]
    found = [((case["rows"], case["l"], case["m"]), case["dtype"]) for case in record["multiply"]]
    assert found == [(size, dtype) for size in sizes_in_the_page(min(level, 2)) for dtype in types]
    assert record["left_out"] == (types if level == 3 else [])  # for want of time
    assert ("left-out" in codes(record, "note")) == (level == 3)


@pytest.mark.exhaustive
def test_large_squares_fill_the_memory_but_no_more_than_60_percent(tmp_path):
    memory = 250 << 20
    done, record = accepted("--minutes", 0.5, "--host-memory", memory, level=3, folder=tmp_path, faults=[EVEN])
    assert done.returncode == 0, done.stdout + done.stderr
    large = [case for case in record["multiply"] if case["rows"] == case["l"] == case["m"] > 1024]
    assert [case["dtype"] for case in large] == ["float32", "float64"]
    assert all(case["l"] > 1536 and 3 * item * case["l"] ** 2 <= 0.6 * memory for case, item in zip(large, (4, 8), strict=True))


def test_help_and_page_agree_on_the_minutes_of_each_level():
    text = quickly(COMMAND, "--help").stdout
    rows = re.findall(r"^\| ([1-3])(?: \(default\))? \|.*\| (\d+) \|$", PAGE, re.MULTILINE)
    assert [level for level, _ in rows] == list("123")
    for level, minutes in rows:
        described = text.partition(f"\n  level {level} ")[2].partition("\n  level ")[0]
        assert re.search(rf"\b{minutes} minutes", described), level


def test_each_run_has_matrices_of_its_own(tmp_path):
    seeds = {accepted(folder=tmp_path)[1]["seed"] for _ in range(2)}
    assert len(seeds) == 2


@pytest.mark.parametrize(
    ("arguments", "environment", "wrong"),
    [
        ([], {"SLURM_GPUS_ON_NODE": "8"}, True), ([], {"CUDA_VISIBLE_DEVICES": "10,11"}, True), (["--expect-gpus", 9], {}, True),
        (["--expect-gpus", 0], {"SLURM_GPUS_ON_NODE": "8"}, False), ([], {"CUDA_VISIBLE_DEVICES": ""}, False),
        (["--device", "cpu"], {"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "0"}, False),
    ],
)  # fmt: skip
def test_gpus_that_the_job_was_given_must_be_used(arguments, environment, wrong, tmp_path):
    level = ["--level", 1, "--threads", 1, "--json", tmp_path / "record"]
    done = quickly(COMMAND, *level, *arguments, hidden=("HYBRID_", "SLURM_", "CUDA_"), **environment)
    assert done.returncode == wrong, done.stdout + done.stderr
    assert ("gpus-unused" in codes(json.loads((tmp_path / "record").read_text()))) == wrong


@pytest.mark.needs("compiler")
@pytest.mark.exhaustive
def test_an_emulated_gpu_is_tested_as_well():
    done = start(COMMAND, "--level", 1, "--device", "emulate", "--threads", 1, limit=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
@launcher
def test_gpus_are_multiplied_on_measured_and_watched(tmp_path):
    record = tmp_path / "accept.jsonl"
    done = start(COMMAND, "--level", 1, "--device", "cuda", "--json", record, ranks=2, limit=300)
    found = json.loads(record.read_text())
    assert found["device"] == "cuda"
    assert done.returncode in (0, 1)  # another program may make a GPU slow, but none wrong
    assert set(codes(found)) <= {"slow-rank", "slow-link", "gpu-health"}, done.stdout
    assert all(placement["uuid"] for placement in found["placements"])
    assert {link["uuid"] for link in found["links"]} == {placement["uuid"] for placement in found["placements"]}
