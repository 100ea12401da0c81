# SPDX-License-Identifier: MIT
"""Every failure and finding has a code: one list, hybrid.errors.CODES, which the package uses up."""

import ast
import os
import re
import signal
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.ordeal.trials import Fault as Harm
from experiments.ordeal.trials import _well
from hybrid.core.problem import Span, Topology
from hybrid.diagnostics import checks, gpu_watch
from hybrid.diagnostics.acceptance import (
    MODELS,
    SLOW,
    Case,
    WrongProduct,
    blamed_rank,
    judge_models,
    judge_products,
    judge_speeds,
)
from hybrid.diagnostics.finding import Finding, Unknown, merged, ok, unknown
from hybrid.diagnostics.links import (
    Failure,
    Link,
    Measurements,
    NodeLink,
    PeerCopy,
    judge,
    judge_host_links,
    judge_node_links,
    judge_peers,
)
from hybrid.diagnostics.probe_process import _Probe
from hybrid.errors import CODES, HybridError, StartError
from hybrid.host.threads import Threads
from hybrid.planning.decision import Gpu, choose_gpus
from hybrid.ranks.mpi import Library
from hybrid.ranks.team import Team
from hybrid.verification.check import Fault

ROOT = Path(__file__).parents[2]


def literals(path: Path) -> list[tuple[bool, str]]:
    """The texts in a module, and whether each of them is given as a code: by keyword, or as a variable or attribute `code`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword | ast.Assign | ast.AnnAssign) and node.value is not None:
            names = [node.arg] if isinstance(node, ast.keyword) else [getattr(each, "id", "") for each in _targets(node)]
            if "code" in names:
                found += [(True, each) for each in _strings(node.value)]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((False, node.value))
    return found


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _strings(value: ast.expr) -> list[str]:
    """The texts that this expression may be: of a choice both, not what it asks."""
    if isinstance(value, ast.IfExp):
        return _strings(value.body) + _strings(value.orelse)
    return [value.value] if isinstance(value, ast.Constant) and isinstance(value.value, str) else []


def test_each_code_is_short_and_in_kebab_case():
    assert not [code for code in CODES if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+){0,2}", code)]


def test_each_code_given_is_known_and_each_known_one_given():
    package = [each for path in sorted((ROOT / "hybrid").rglob("*.py")) for each in literals(path)]
    given, texts = {text for is_code, text in package if is_code and text}, [text for _, text in package]
    assert given - set(CODES) == set()
    assert {code for code in CODES if texts.count(code) < 2} == set()  # once as the key of CODES


def test_a_code_that_is_not_listed_is_refused():
    with pytest.raises(AssertionError):
        HybridError("anything", code="invented")


# --- The judges of findings: pure functions of what all ranks saw, as tables of machines made up, with a verdict and a code
# each


OK = ("ok", "ok")
UNKNOWN = ("unknown", "unknown")


def one(finding):
    return finding.verdict, finding.code


def verdicts(findings):
    return list(map(one, findings))


def test_what_is_wrong_has_a_remedy_and_a_code():
    for verdict, more in (("wrong", {"code": "no-gpu"}), ("wrong", {"remedy": "do this"}), ("note", {}), ("bad", {})):
        with pytest.raises(AssertionError):
            Finding("subject", "text", verdict=verdict, **more)
    assert Finding("gpus", "none", "buy one", "no-gpu", "wrong").line(6) == "WRONG    gpus    none → buy one [no-gpu]"
    assert Finding("gpus", "two").line(6) == "ok       gpus    two"


# --- MPI, threads, Slurm

MPICH = Library("MPICH 5.0.2", (5, 0), "mpich", "FUNNELED", "MULTIPLE", True)
OPEN_MPI = Library("Open MPI v5.0.11", (3, 1), "openmpi", "FUNNELED", "FUNNELED", True)
SINGLE = Library("An MPI", (3, 1), "x", "FUNNELED", "SINGLE", False)


def test_launcher_and_library():
    for ranks, unstarted, launcher, library in [
        ([checks.MpiOfRank("", MPICH, ("/usr/bin/mpirun", "MPICH"))], None, OK, OK),
        ([checks.MpiOfRank("", MPICH, ("/usr/bin/mpirun", "Open MPI"))], None, ("wrong", "wrong-mpirun"), OK),
        ([checks.MpiOfRank("", MPICH, None)], None, ("note", "mpi-missing"), OK),
        ([checks.MpiOfRank("", Unknown("x"), Unknown("x"))], None, UNKNOWN, UNKNOWN),
        ([checks.MpiOfRank("srun", MPICH)], StartError("x", code="wrong-mpirun"), ("wrong", "wrong-mpirun"), OK),
        ([checks.MpiOfRank("mpirun", each) for each in (MPICH, OPEN_MPI)], None, OK, ("wrong", "mpi-differs")),
        ([checks.MpiOfRank("mpirun", SINGLE)] * 2, None, OK, ("wrong", "mpi-threads")),
    ]:
        assert verdicts(checks.judge_mpi(ranks, unstarted)) == [launcher, library]


def seat(cores, threads=1, host="a", quota=None):
    return checks.Placement(host, tuple(cores), quota, Threads(threads, "--threads"))


def of_nodes(*sizes):
    ranks = iter(range(sum(sizes)))
    return Topology(tuple(tuple(next(ranks) for _ in range(size)) for size in sizes))


def test_threads_against_cores():
    for seats, nodes, threads, remedy in [
        ([seat(range(4), 2)] * 2, (2,), OK, ""),
        ([seat(range(4), 3)] * 2, (2,), ("wrong", "threads-crowded"), "--threads 2"),
        ([seat(range(2), 1)] * 3, (3,), ("wrong", "threads-crowded"), "at most 2 ranks"),
        ([seat(range(8), 2, quota=3.0)] * 2, (2,), ("wrong", "threads-crowded"), "--threads 1"),
        ([seat(range(8), 2, quota=4.0)] * 2, (2,), OK, ""),
        ([seat(range(8), 1, quota=0.5)], (1,), OK, ""),
        ([seat([0], 2), seat([1, 2, 3], 1)], (2,), ("wrong", "threads-bound"), "bind"),
        ([seat(range(4), 4), seat(range(4), 4, host="b")], (1, 1), OK, ""),
        ([seat(range(4), 5), seat(range(4), 5, host="b")], (1, 1), ("wrong", "threads-crowded"), "--threads 4"),
    ]:
        finding = checks.judge_threads(seats, of_nodes(*nodes))
        assert one(finding) == threads
        assert remedy in finding.remedy


JOB = {"JOB_ID": "7", "NTASKS": "2", "JOB_NUM_NODES": "1"}
STEP = {**JOB, "STEP_NUM_TASKS": "2", "STEP_NUM_NODES": "1"}


def test_slurms_view_against_the_ranks():
    for seen, cores, with_gpu, nodes, launched, expected in [
        ([{}] * 2, [4] * 2, [False] * 2, (2,), True, OK),
        ([STEP] * 2, [4] * 2, [False] * 2, (2,), True, OK),
        ([{**STEP, "CPUS_PER_TASK": "4"}] * 2, [4, 2], [False] * 2, (2,), True, ("wrong", "slurm-cores")),
        ([{**STEP, "STEP_GPUS": "0,1"}] * 2, [4] * 2, [True, False], (2,), True, ("wrong", "slurm-gpus")),
        ([{**STEP, "GPUS_ON_NODE": "0"}] * 2, [4] * 2, [False] * 2, (2,), True, OK),
        ([JOB], [4], [False], (1,), False, ("note", "slurm-tasks")),
        ([{**JOB, "NTASKS": "4"}] * 2, [4] * 2, [False] * 2, (2,), True, ("note", "slurm-tasks")),
        ([{**JOB, "NTASKS": "1"}] * 2, [4] * 2, [False] * 2, (2,), True, ("note", "slurm-tasks")),
        ([{**JOB, "JOB_NUM_NODES": "3"}] * 2, [4] * 2, [False] * 2, (1, 1), True, ("note", "slurm-tasks")),
        ([{**STEP, "JOB_NUM_NODES": "3"}] * 2, [4] * 2, [False] * 2, (1, 1), True, OK),
        ([{"JOB_ID": "7", "NTASKS": "many"}], [4], [False], (1,), True, OK),
    ]:
        assert one(checks.judge_slurm(seen, cores, with_gpu, of_nodes(*nodes), launched=launched)) == expected


# --- memory and tools


def test_memory_that_cannot_be_pinned_for_a_gpu_is_wrong():
    for trial, expected in [
        (None, OK),
        (checks.Trial(True), OK),
        (checks.Trial(True, pin_trouble="refused"), ("wrong", "pinned-limit")),
    ]:
        assert one(checks.examine_pinned(trial)) == expected


def test_what_all_ranks_find_is_one_line_and_else_the_ranks_are_named():
    first, other = ok("blas", "one"), ok("blas", "two")
    for of_ranks, texts in [
        ([[first]] * 3, ["one"]),
        ([[first], [other], [first]], ["rank 0,2: one", "rank 1: two"]),
        ([[first], [], []], ["rank 0: one"]),
        ([[first], None, None], ["one"]),  # on the others nobody looked
    ]:
        assert [finding.text for finding in merged(of_ranks)] == texts


# --- GPUs

H200 = {"index": 0, "uuid": "GPU-a", "name": "NVIDIA H200", "capability": 90}
GOOD = {"driver": 13000, "status": 0, "visible": 1, "cupy": "14.2.0", "runtime": 13020, "gpus": [H200]}


def test_gpus_that_are_visible_but_unusable_are_wrong_and_it_is_said_what_to_do():
    no_answer = {name: GOOD[name] for name in GOOD if name != "gpus"}
    for said, remedy in [
        ({"driver": None}, "--gpus all"),
        ({**GOOD, "status": 999, "status_name": "CUDA_ERROR_UNKNOWN"}, "nvidia-smi"),
        ({"driver": 12040, "status": 0, "visible": 2, "cupy_error": "no cupy"}, "[cuda12]"),
        ({"driver": 13000, "status": 0, "visible": 2}, "[cuda13]"),  # its process died of importing CuPy
        ({**GOOD, "driver": 12080, "packages": ["cupy-cuda13x"]}, "pip uninstall cupy-cuda13x"),
        ({**GOOD, "packages": ["cupy-cuda12x", "cupy-cuda13x"]}, "pip uninstall cupy-cuda12x cupy-cuda13x"),
        ({**GOOD, "driver": 11040}, "a newer driver"),
        (no_answer, "nvidia-smi"),  # its process died of asking for GPUs
        ({**no_answer, "missing": "cudaErrorInsufficientDriver"}, "a driver for CUDA 13.2"),
        ({**GOOD, "gpus": [{**H200, "capability": 35}]}, "--device cpu"),
    ]:
        sight = checks.interpret_gpus(said, "was killed by SIGSEGV", driver_loaded=True, environment={})
        (finding,) = checks.judge_gpus([sight], [None], [None], ["a"])
        assert one(finding) == ("wrong", "gpu-failed")
        assert remedy in finding.remedy


def sees(*names):
    return checks.Sight(tuple(Gpu(index, f"GPU-{name}", "H200") for index, name in enumerate(names)), about="about")


def test_what_a_probe_writes_as_it_ends_is_read():
    (read, write), probe = os.pipe(), object.__new__(_Probe)

    def poll():  # it writes, and ends, between one look and the next
        os.write(write, b'{"stage": "done"}\n')
        return 0

    with open(read, "rb") as output, open(write, "wb"):
        vars(probe).update(_process=SimpleNamespace(stdout=output, poll=poll), _deadline=inf, _unread=b"")
        assert probe._next_line(Team()) == '{"stage": "done"}'


def test_ranks_on_gpus_by_uuid():
    none = checks.Sight((), ok("gpus", "none"))
    for sights, works, expected in [
        ([sees("a", "b")] * 2, True, [OK]),
        ([sees("a"), sees("b")], True, [OK]),
        ([sees("a")] * 2, True, [("note", "gpu-shared")]),
        ([sees("a", "b")], True, [("note", "gpu-idle")]),
        ([sees("a"), sees("a"), sees("a", "b", "c")], True, [("wrong", "gpu-shared")]),
        ([sees("a"), none, checks.Sight((), unknown("gpus", "x"))], True, [("note", "no-gpu"), UNKNOWN, OK]),
        ([none] * 2, True, [OK]),
        ([sees("a")], False, [("wrong", "gpu-failed"), OK]),
    ]:
        chosen = choose_gpus([sight.usable for sight in sights])
        trial = checks.Trial(works, "" if works else "compiling: ended with 1")
        assert (
            verdicts(checks.judge_gpus(sights, chosen, [trial if gpu else None for gpu in chosen], ["a"] * len(sights)))
            == expected
        )


def rates(to_gpu, to_host):
    return {"to_gpu": to_gpu, "to_host": to_host}


def link(rank, into, out, together=None, *, pinned=True, host="a"):
    both = rates(together * 1e9, together * 1e9) if together else None
    return Link(f"GPU-{rank}", rank, host, pinned, rates(into * 1e9, out * 1e9), both)


def copy(source, target, rate):
    return PeerCopy(f"GPU-{source}", f"GPU-{target}", rate * 1e9)


def test_links_at_once_are_compared_with_each_alone():
    for links, expected in [
        ([], OK),
        ([link(0, 50, 49)], OK),
        ([link(0, 50, 50, 36), link(1, 50, 50, 36)], OK),
        ([link(0, 50, 50, 25), link(1, 50, 50, 25)], ("note", "slow-link")),  # all at once
        ([link(0, 8, 8, pinned=False)], ("note", "pinned-limit")),
        *(([link(0, 50, 50), link(1, each, 50)], UNKNOWN) for each in (0, -1, nan, inf)),
    ]:
        assert one(judge_host_links(Measurements(tuple(links)))) == expected


REFUSED = Failure("rank 1", "opening", "x", died=False)


def test_ranks_that_do_or_do_not_reach_each_others_gpus():
    for copies, failure, expected, remedy in [
        ([copy(0, 1, 90), copy(1, 0, 80)], None, OK, ""),
        ([], None, OK, ""),
        ([copy(0, 1, nan)], None, UNKNOWN, ""),
        ([], REFUSED, ("note", "gpu-peers"), "--ipc=host"),
        ([], Failure("rank 1", "opening", "x", died=True), ("wrong", "gpu-peers"), "--transport host"),
        ([], Failure("rank 1", "testing", "x", died=False, code="gpu-data"), ("wrong", "gpu-data"), "IOMMU"),
        ([], Failure("rank 1", "fetching", "x", died=False, code="gpu-data"), ("wrong", "gpu-data"), "--transport host"),
        ([], Failure("rank 1", "fetching", "x", died=False), UNKNOWN, ""),
        ([], Failure("rank 1", "starting", "x", died=True), UNKNOWN, ""),
    ]:
        moved = Measurements((link(0, 50, 50), link(1, 50, 50)), tuple(copies), failure, nodes=((0, 1),))
        finding = judge_peers(moved)
        assert one(finding) == expected
        assert remedy in finding.remedy


def test_a_gpu_that_was_watched():
    for more, expected in [
        ({}, OK),
        ({"corrected": 3}, ("note", "gpu-health")),
        ({"uncorrected": 2}, ("wrong", "gpu-health")),
        ({"slowed": ("too hot",)}, ("wrong", "gpu-health")),
        ({"temperature": 90, "limit": 90}, ("wrong", "gpu-health")),
        ({"trouble": "lost"}, ("wrong", "gpu-health")),
        ({"capped": True}, OK),
    ]:
        assert verdicts(gpu_watch.judge([watched(**more), None], ["rank 0", "rank 1"], "x")) == [expected]
    assert verdicts(gpu_watch.judge([None], ["rank 0"], "x")) == [("note", "no-gpu")]
    assert verdicts(gpu_watch.judge([Unknown("x")], ["rank 0"], "x")) == [UNKNOWN]


def watched(**more):
    usual = {"samples": 2, "clock": (345, 1980), "power": 400.0, "temperature": 60, "limit": 90, "corrected": 0, "uncorrected": 0,
             "slowed": (), "capped": False, "trouble": ""}  # fmt: skip
    return gpu_watch.Watched(**{**usual, **more})


# --- the acceptance test

CASE, OTHER = (Case(128, 256, 256, dtype) for dtype in ("float64", "float32"))
NAMES = ["rank 0 on a", "rank 1 on a", "rank 2 on b"]


def test_the_rank_to_blame_is_the_faults_or_the_one_that_has_its_row():
    for fault, rank in [
        (Fault("x", rank=12), 12), (Fault("x", rank=1, row=9), 1), (Fault("x", row=9), 2), (Fault("x", row=4), 1),
        (Fault("x"), None),
    ]:  # fmt: skip
        assert blamed_rank(fault, [Span(0, 4), Span(4, 8), Span(8, 12)]) == rank


def test_the_same_rows_wrong_on_several_ranks_are_the_memorys_fault():
    for wrong, expected in [
        ([], ["ok"]),
        ([(0, 1), (0, 2)], ["wrong-device"]),
        ([(0, 1), (2, 1)], ["wrong-rows"] * 2),
        ([(0, 1), (2, 1), (2, 0)], ["wrong-rows", "wrong-device"]),
        ([(None, None)], ["wrong-rows"]),
        ([(None, None, "check-exchange")], ["check-exchange"]),
        ([(1, 1, "check-copy")], ["wrong-device"]),
    ]:
        found = [WrongProduct(CASE, 0, *(each if len(each) > 2 else (*each, "check-product")), "row 3") for each in wrong]
        assert [finding.code for finding in judge_products(found, NAMES, 9)] == expected


def test_who_takes_ten_percent_longer_than_the_median_is_slow():
    for seconds, slow in [
        ([1.0, 1.0, 1.09], []),
        ([1.0, 1.0, 1.2], [2]),
        ([1.0, 1.2, 1.2], []),  # the median is 1.2
        ([1.0, 0.5, 1.2], [2]),
        ([1.0, 1.05], []),
        ([1.2, 1.0], [0]),  # of two each is compared with the other
    ]:
        findings = judge_speeds({CASE: [[each] * 3 for each in seconds]}, NAMES[: len(seconds)])
        assert [finding.text.partition(":")[0] for finding in findings if finding.code == "slow-rank"] == [
            NAMES[rank] for rank in slow
        ]
        assert slow or verdicts(findings) == [OK]


def test_each_type_is_judged_over_all_of_its_sizes_and_what_is_too_short_is_not():
    in_one_size = {CASE: [[1.0], [1.0], [1.5]], Case(1, 1, 1, "float64"): [[1.0] * 3, [1.0] * 3, [1.0] * 3]}
    assert verdicts(judge_speeds(in_one_size, NAMES)) == [OK]
    assert verdicts(judge_speeds({CASE: [[1.0], [1.0], [1.5]], OTHER: [[1.0]] * 3}, NAMES)) == [("wrong", "slow-rank")]
    assert verdicts(judge_speeds({CASE: [[1.0], [1.5]]}, NAMES[:2], sharing={0, 1})) == [("note", "slow-rank")]
    assert verdicts(judge_speeds({CASE: [[0.001], [0.004]]}, NAMES[:2])) == [("note", "too-short")]
    assert verdicts(judge_speeds({CASE: [[1.0]]}, NAMES[:1])) == [OK]


def test_a_gpu_far_below_its_model_is_slow_even_alone():
    (of_types, of_link), case = MODELS["NVIDIA H200"], Case(4096, 8192, 8192, "float64")
    whole = 2 * 4096 * 8192 * 8192 / of_types["float64"]
    for name, speed, link_rate, expected in [
        ("NVIDIA H200", 0.6, 0.6, []),
        ("NVIDIA H200", 1 / 3, 1, ["slow-rank"]),
        ("NVIDIA H200 NVL", 1, 1 / 3, ["slow-link"]),
        ("NVIDIA H200 MIG 1g.18gb", 0.1, 1, []),
        ("another", 0.1, 0.1, []),
    ]:
        placement = SimpleNamespace(rank=0, name="rank 0 on h", gpu=SimpleNamespace(name=name, uuid="GPU-0"))
        links = Measurements((Link("GPU-0", 0, "h", True, rates(of_link, link_rate * of_link)),))
        found = judge_models({case: [[whole / speed]], Case(1, 1, 1, "float64"): [[1e-6]]}, [placement], links)
        assert [(each.verdict, each.code) for each in found] == [("wrong", code) for code in expected]


def test_slow_links_are_named_against_the_median_of_their_kind():
    def found(last):
        links = tuple(Link(f"GPU-{n}", n, "h", True, rates(50e9, last if n == 2 else 50e9)) for n in range(3))
        copies = (copy(0, 1, 300), copy(1, 0, 300), copy(1, 2, 200))
        slow = [finding for finding in judge(Measurements(links, copies), SLOW) if finding.code == "slow-link"]
        return [finding.text.partition(":")[0] for finding in slow]

    assert found(24e9) == ["GPU-2 of rank 2 on h", "GPU-1 to GPU-2"]
    assert found(46e9) == ["GPU-1 to GPU-2"]
    ring = [
        NodeLink(*ends, (rate, 1.1 * rate, 0.3 * rate))
        for ends, rate in zip(("ab", "bc", "ca"), (25e9, 12.5e6, 24e9), strict=True)
    ]
    assert verdicts(judge_node_links(ring, SLOW)) == [("wrong", "slow-link")]
    assert verdicts(judge_node_links([ring[0], ring[2]], SLOW)) == [OK]
    assert judge_node_links([], SLOW) == []


# --- How scripts/ordeal.py judges the end of a job to which something was done: success, or exactly one line

KILL_WORKER, KILL_LAUNCHER = (Harm("SIGKILL", signal.SIGKILL, whom) for whom in ("worker", "launcher"))
STOP_RANK = Harm("SIGSTOP", signal.SIGSTOP, "rank")
LINE = "hybrid: rank 0 on n, fill: was killed by SIGKILL"


@pytest.mark.parametrize(
    ("fault", "code", "said", "out", "watched", "well"),
    [
        (KILL_WORKER, 137, [LINE], "", True, True),
        (KILL_WORKER, 137, [], "", True, False),
        (KILL_WORKER, 137, [LINE, LINE], "", True, False),
        (KILL_WORKER, 0, [], "check ok", True, True),
        (KILL_WORKER, 0, [], "", True, False),
        (KILL_WORKER, 0, [LINE], "check ok", True, False),
        (KILL_WORKER, None, [], "", True, False),  # it hangs
        (KILL_LAUNCHER, -9, [], "", True, True),  # nobody of ours is left to say a word
        (STOP_RANK, 1, [], "", True, False),
        (STOP_RANK, 143, [], "what was finished", True, True),
        (KILL_WORKER, 137, [], "", False, True),  # a program that no supervisor watches
        (KILL_WORKER, None, [], "", False, False),
        (KILL_WORKER, 0, [], "", False, False),
    ],
)
def test_an_end_is_well_if_it_succeeds_or_is_named_once(fault, code, said, out, watched, well):
    assert _well(fault, code, said, out, watched=watched) is well
