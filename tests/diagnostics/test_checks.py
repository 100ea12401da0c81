# SPDX-License-Identifier: MIT
"""What the doctor's checks say of machines made up of numbers."""

from __future__ import annotations

import pytest
from support.doctor import SAME, THREE

from hybrid.core.spans import Topology
from hybrid.devices.cuda_gpus import Gpu
from hybrid.diagnostics import bandwidth, compilers, cuda_aware_mpi, gpu_peers, gpus, host_links, limits, mpi, placement, slurm
from hybrid.diagnostics.examination import Examination, as_text
from hybrid.diagnostics.finding import Finding, Unknown, attempt, ranks_by_value
from hybrid.diagnostics.probe_process import ProbeResult, run_command
from hybrid.errors import StartError
from hybrid.host.threads import Threads
from hybrid.ranks.launcher import family_of, mpirun
from hybrid.ranks.mpi_library import Library

launcher = pytest.mark.launcher


def verdicts(findings):
    return [finding.verdict for finding in findings]


def test_what_fails_is_unknown_with_its_reason():
    assert attempt(lambda: 1) == 1
    assert attempt(lambda: 1 // 0) == Unknown("ZeroDivisionError: integer division or modulo by zero")
    assert ranks_by_value("abca") == {"a": [0, 3], "b": [1], "c": [2]}
    with pytest.raises(AssertionError):
        Finding("x", "wrong", "no remedy")


MPICH = Library("MPICH 5.0.2", (5, 0), "mpich", "FUNNELED", "MULTIPLE", True)
OPEN_MPI = Library("Open MPI v5.0.11", (3, 1), "openmpi", "FUNNELED", "FUNNELED", True)


def test_large_counts_and_families_are_told_from_the_library():
    assert (MPICH.large_counts, OPEN_MPI.large_counts) == (True, False)
    assert (MPICH.family, OPEN_MPI.family) == ("MPICH", "Open MPI")


@launcher
def test_the_family_of_this_environments_mpirun_is_that_of_its_library():
    assert family_of(mpirun(1)[0]) == mpi.inspect(started=False).mpi.family


@pytest.mark.parametrize(
    ("library", "found_on_path", "verdict", "said"),
    [
        (MPICH, ("/usr/bin/mpirun", "MPICH"), "ok", "/usr/bin/mpirun (MPICH) starts several"),
        (MPICH, ("/usr/bin/mpirun", "Open MPI"), "wrong", "/usr/bin/mpirun is Open MPI's, but mpi4py uses MPICH 5.0.2"),
        (OPEN_MPI, ("/usr/bin/mpirun", "MPICH"), "wrong", "every rank would be 0 of 1"),
        (MPICH, ("/usr/bin/mpirun", ""), "ok", "/usr/bin/mpirun starts several"),
        (MPICH, None, "note", "no mpirun on PATH"),
        (MPICH, Unknown("planted"), "unknown", "planted"),
        (Unknown("planted"), ("/usr/bin/mpirun", "MPICH"), "ok", "starts several"),
    ],
)
def test_alone_the_mpirun_on_the_path_is_compared(library, found_on_path, verdict, said):
    finding = mpi.judge([mpi.MpiOfRank("", library, found_on_path)], None)[0]
    assert (finding.verdict, said in finding.text) == (verdict, True), finding


@pytest.mark.parametrize(
    ("launcher_name", "library", "remedy"),
    [("srun", MPICH, "--mpi=pmi2"), ("srun", OPEN_MPI, "--mpi=pmix"), ("mpirun", MPICH, "mpirun")],
)
def test_processes_that_are_no_ranks_get_what_fits(launcher_name, library, remedy):
    finding = mpi.judge([mpi.MpiOfRank(launcher_name, library)], StartError("planted"))[0]
    assert (finding.verdict, finding.text) == ("wrong", f"planted; mpi4py uses {library.name}")
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("beside", "remedy"),
    [
        (("/env/bin/mpirun", "MPICH"), "try /env/bin/mpirun"),
        (("/env/bin/mpirun", ""), "try /env/bin/mpirun"),
        (("/env/bin/mpirun", "Open MPI"), "try the mpirun that came with MPICH 5.0.2"),
        (Unknown("planted"), "try the mpirun that came with MPICH 5.0.2"),
        (None, "try the mpirun that came with MPICH 5.0.2"),
    ],
)
def test_this_environments_mpirun_is_proposed_only_where_it_fits(beside, remedy):
    finding = mpi.judge([mpi.MpiOfRank("mpirun (Open MPI)", MPICH, beside)], StartError("planted"))[0]
    assert finding.remedy == remedy


def test_where_it_is_known_what_to_do_that_is_said():
    error = StartError("/dev/shm is read-only", "mount it")
    finding = mpi.judge([mpi.MpiOfRank("mpirun (MPICH)", MPICH)], error)[0]
    assert (finding.verdict, finding.remedy) == ("wrong", "mount it")
    assert finding.text.startswith("/dev/shm is read-only")
    assert str(error) == "/dev/shm is read-only; mount it"


def test_ranks_with_different_libraries_are_wrong():
    seen = [mpi.MpiOfRank("mpirun", library) for library in (MPICH, MPICH, OPEN_MPI)]
    finding = mpi.judge(seen, None)[1]
    assert (finding.verdict, finding.text) == (
        "wrong",
        "not the same on all ranks: rank 0-1: MPICH 5.0.2; rank 2: Open MPI v5.0.11",
    )


def test_an_mpi_without_threads_is_wrong():
    single = Library("An MPI", (3, 1), "x", "FUNNELED", "SINGLE", False)
    assert mpi.judge([mpi.MpiOfRank("mpirun", single)] * 2, None)[1].verdict == "wrong"


def seat(cores, threads=1, pool=None, host="a", quota=None):
    blas = (placement.BlasLibrary("openblas 1", pool or threads),)
    return placement.Placement(host, tuple(cores), quota, Threads(threads, "--threads"), blas)


def of_nodes(*sizes):
    ranks = iter(range(sum(sizes)))
    return Topology(tuple(tuple(next(ranks) for _ in range(size)) for size in sizes))


@pytest.mark.parametrize(
    ("seats", "nodes", "verdict", "said"),
    [
        ([seat(range(4), 2)] * 2, (2,), "ok", "2 a rank (--threads)"),
        ([seat(range(4), 3)] * 2, (2,), "wrong", "6 threads of 2 ranks on 4 cores of a → --threads 2"),
        ([seat(range(2), 1)] * 3, (3,), "wrong", "3 threads of 3 ranks on 2 cores of a → start at most 2 ranks there"),
        ([seat(range(8), 2, quota=3.0)] * 2, (2,), "wrong", "4 threads of 2 ranks on 3 cores of a → --threads 1"),
        ([seat(range(8), 2, quota=4.0)] * 2, (2,), "ok", ""),
        ([seat(range(8), 1, quota=0.5)], (1,), "ok", ""),
        ([seat(range(8), 1, quota=0.5)] * 2, (2,), "wrong", "2 threads of 2 ranks on 1 core of a → start at most 1 rank there"),
        ([seat([0], 2), seat([1, 2, 3], 1)], (2,), "wrong", "rank 0 has 2 threads, bound to 1 core → bind ranks"),
        ([seat(range(4), 4), seat(range(4), 4, host="b")], (1, 1), "ok", ""),
        ([seat(range(4), 5), seat(range(4), 5, host="b")], (1, 1), "wrong", "(and 1 host more)"),
        ([seat(range(4), 1), seat(range(4), 2)], (2,), "ok", "rank 0: 1 (--threads); rank 1: 2 (--threads)"),
    ],
)
def test_threads_against_cores(seats, nodes, verdict, said):
    finding = placement.judge(seats, of_nodes(*nodes))[1]
    assert finding.verdict == verdict, finding
    assert said in f"{finding.text} → {finding.remedy}"


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("SLURM_CPUS_PER_TASK", "--threads 2, or SLURM_CPUS_PER_TASK=2"),
        ("OMP_NUM_THREADS", "--threads 2, or OMP_NUM_THREADS=2"),
        ("--threads", "--threads 2"),
    ],
)
def test_threads_are_lowered_by_what_has_set_them(reason, remedy):
    """OMP_NUM_THREADS changes nothing where SLURM_CPUS_PER_TASK is set."""
    crowded = [placement.Placement("a", (0, 1, 2, 3), None, Threads(4, reason), ()) for _ in range(2)]
    assert placement.judge(crowded, of_nodes(2))[1].remedy == remedy


def test_ranks_bound_to_a_part_of_the_host_hear_of_the_rest():
    def remedy(cores_of_host, quota=None):
        seats = [placement.Placement("a", (0,), quota, Threads(1, "--threads"), (), cores_of_host) for _ in range(2)]
        return placement.judge(seats, of_nodes(2))[1].remedy

    assert (
        remedy(8) == "start at most 1 rank there, or let them use more of its 8 cores (mpirun --bind-to none, a larger srun -c)"
    )
    assert remedy(1) == remedy(0) == remedy(8, quota=0.5) == "start at most 1 rank there"


def test_a_blas_that_does_not_keep_to_its_threads_is_wrong():
    assert verdicts(placement.judge([seat(range(4), 2, pool=2)] * 2, of_nodes(2))) == ["ok", "ok", "ok"]
    finding = placement.judge([seat(range(4), 2, pool=2), seat(range(4), 2, pool=4)], of_nodes(2))[2]
    assert (finding.verdict, finding.text) == ("wrong", "openblas 1 starts 4 threads on rank 1, where 2 were set")
    blind = placement.Placement("a", (0,), None, Threads(1, ""), Unknown("planted"))
    assert placement.judge([blind], of_nodes(1))[2] == Finding("blas", "unknown", "rank 0: planted")
    none = placement.Placement("a", (0,), None, Threads(1, ""), ())
    assert placement.judge([none], of_nodes(1))[2].verdict == "note"


@pytest.mark.parametrize(
    ("seats", "nodes", "said"),
    [
        ([seat([0, 1])] * 2, (2,), "2 ranks on 1 host: a rank 0-1 on cores 0-1"),
        ([seat([0]), seat([1])], (2,), "2 ranks on 1 host: a rank 0 on cores 0; a rank 1 on cores 1"),
        ([seat([0])] * 2 + [seat([0], host="b")] * 2, (2, 2), "4 ranks on 2 hosts: a rank 0-1 on cores 0; b rank 2-3 on cores 0"),
        ([seat([0])] * 100, (20,) * 5, "100 ranks on 5 hosts, 20 on each (--json lists them)"),
        ([seat([0])] * 11, (1, 1, 1, 1, 7), "11 ranks on 5 hosts, 1 to 7 on each (--json lists them)"),
        ([seat([rank]) for rank in range(64)], (64,), "64 ranks on 1 host: a rank 0-63, bound differently (--json lists them)"),
    ],
)
def test_places_take_one_line(seats, nodes, said):
    assert placement.judge(seats, of_nodes(*nodes))[0] == Finding("placement", "ok", said)


H200 = {"index": 0, "uuid": "GPU-a", "name": "NVIDIA H200", "capability": 90}
GOOD = {"driver": 13000, "status": 0, "visible": 1, "cupy": "14.2.0", "runtime": 13020, "gpus": [H200]}


def interpreted(said, ended="", loaded=True, **environment):
    return gpus.interpret(said, ended, driver_loaded=loaded, environment=environment)


@pytest.mark.parametrize(
    ("said", "trouble", "remedy"),
    [
        ({"driver": None}, "libcuda.so.1 is not to be found", "--gpus all"),
        ({**GOOD, "status": 999, "status_name": "CUDA_ERROR_UNKNOWN"}, "fails: CUDA_ERROR_UNKNOWN", "nvidia-smi"),
        ({"driver": 12040, "status": 0, "visible": 2, "cupy_error": "ModuleNotFoundError: no cupy"}, "no cupy", "[cuda12]"),
        ({"driver": 13000, "status": 0, "visible": 2, "cupy_error": "x"}, "2 visible, driver for CUDA 13.0, but", "[cuda13]"),
        ({"driver": 13000, "status": 0, "visible": 2}, "importing it was killed by SIGSEGV", "[cuda13]"),
        ({**GOOD, "driver": 12080}, "driver for CUDA 12.8, CuPy 14.2.0 for CUDA 13.2: too old for it", "[cuda12]"),
        ({**GOOD, "driver": 12080, "packages": ["cupy-cuda13x"]}, "too old for it", "pip uninstall cupy-cuda13x, then"),
        ({**GOOD, "packages": ["cupy-cuda12x", "cupy-cuda13x"]}, "cupy-cuda12x, cupy-cuda13x are installed together",
         "pip uninstall cupy-cuda12x cupy-cuda13x, then pip install -e"),
        ({"driver": 11040, "status": 0, "visible": 2, "cupy_error": "no cupy"}, "no cupy", "install a newer driver"),
        ({name: GOOD[name] for name in GOOD if name != "gpus"} | {"missing": "x cudaErrorCallRequiresNewerDriver: y"}, "x cuda",
         "a driver for CUDA 13.2 or newer"),
        ({**GOOD, "driver": 11040}, "too old for it", "a newer driver"),
        ({**GOOD, "gpus": [{**H200, "capability": 70}]}, "compute capability 7.0", "[cuda12]"),
        ({**GOOD, "gpus": [{**H200, "capability": 35}]}, "less than any kernel here supports", "--device cpu"),
        ({name: GOOD[name] for name in GOOD if name != "gpus"} | {"missing": "planted"}, "planted", "nvidia-smi"),
    ],
)  # fmt: skip
def test_gpus_that_are_visible_but_unusable_are_wrong(said, trouble, remedy):
    sight = interpreted(said, "was killed by SIGSEGV")
    (finding,) = gpus.judge([sight], [None], [None], ["a"])
    assert finding.verdict == "wrong"
    assert trouble in finding.text
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("said", "environment", "why"),
    [
        ({"driver": None}, {}, "none: no NVIDIA driver (libcuda.so.1) on this machine"),
        ({"driver": 13000, "status": 100, "visible": 0}, {}, "driver for CUDA 13.0, but no GPU for this process; in a Slurm job"),
        ({"driver": 13000, "status": 0, "visible": 0}, {"CUDA_VISIBLE_DEVICES": ""}, "(CUDA_VISIBLE_DEVICES='')"),
    ],
)
def test_a_missing_gpu_is_not_wrong(said, environment, why):
    sight = interpreted(said, loaded=False, **environment)
    (finding,) = gpus.judge([sight] * 2, [None] * 2, [None] * 2, ["a"] * 2)
    assert (finding.verdict, why in finding.text) == ("ok", True), finding


def sees(*names):
    return gpus.VisibleGpus(tuple(Gpu(index, f"GPU-{name}", "H200") for index, name in enumerate(names)), None, about="about")


def judged(sights, nodes, trial=gpus.Trial(True, "", 64 << 20)):  # noqa: B008 (never changes)
    assert sum(nodes) == len(sights)
    chosen = gpus.choose(sights)
    return gpus.judge(sights, chosen, [trial if gpu else None for gpu in chosen], ["a"] * len(sights))


@pytest.mark.parametrize(
    ("sights", "nodes", "verdict", "said"),
    [
        ([sees("a", "b")] * 2, (2,), "ok", "2 usable, about; rank 0 on a: GPU-a H200; rank 1 on a: GPU-b H200"),
        ([sees("a"), sees("b")], (2,), "ok", "rank 1 on a: GPU-b"),
        ([sees("a")] * 2, (2,), "note", "rank 0-1 share a GPU: one rank a GPU is faster"),
        ([sees("a", "b")], (1,), "note", "1 idle: start as many ranks as GPUs"),
        ([sees("a"), sees("a"), sees("a", "b", "c")], (3,), "wrong", "rank 0-1 share a GPU, and GPU-"),
        ([sees("a", "b"), sees("c", "d")], (1, 1), "note", "2 idle"),
        ([sees(*"abcdefgh")] * 8, (8,), "ok", "4 more (--json lists them)"),
    ],
)
def test_ranks_on_gpus_by_uuid(sights, nodes, verdict, said):
    (finding,) = judged(sights, nodes)
    assert (finding.verdict, said in finding.text) == (verdict, True), finding


def test_ranks_that_differ_are_named():
    absent = gpus.VisibleGpus((), None, "no driver")
    findings = judged([sees("a"), absent, Unknown("planted"), gpus.VisibleGpus((), ("trouble", "do this"))], (1, 1, 1, 1))
    assert [(finding.verdict, finding.text[:7]) for finding in findings] == [
        ("note", "rank 1:"), ("unknown", "rank 2:"), ("wrong", "rank 3:"), ("ok", "1 usabl")
    ]  # fmt: skip


def test_a_gpu_that_does_not_work_is_wrong():
    broken, fine = judged([sees("a")] * 2, (2,), gpus.Trial(False, "compiling: ended with 1: no nvrtc"))
    assert (broken.verdict, fine.verdict) == ("wrong", "note")
    assert "does not work: compiling: ended with 1: no nvrtc" in broken.text


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        (ProbeResult({"stage": "moving", "correct": True}, ""), "yes"),
        (ProbeResult({"stage": "moving", "correct": True}, "was killed by SIGSEGV"), "yes"),  # at its end, after the answer
        (ProbeResult({"stage": "moving", "correct": False}, ""), "what arrived was not what had been sent"),
        (ProbeResult({"stage": "moving"}, "was killed by SIGSEGV"), "the process that tried was killed by SIGSEGV"),
        (ProbeResult({"stage": "host memory moved"}, "ended with 1"), Unknown),
        (ProbeResult({}, "took more than 60 s"), Unknown),
    ],
)
def test_only_a_death_while_moving_speaks_against_mpi(told, answer):
    found_out = cuda_aware_mpi.interpret(told)
    assert isinstance(found_out, Unknown) if answer is Unknown else found_out == answer


def test_mpi_that_knows_no_gpus_is_not_wrong():
    assert cuda_aware_mpi.judge([None, None]).text == "not tried: no GPU"
    assert cuda_aware_mpi.judge(["yes", None]).text.startswith("yes")
    assert cuda_aware_mpi.judge(["yes", "died"]).text == "no (died); nothing here needs it"
    assert cuda_aware_mpi.judge([Unknown("planted"), None]).verdict == "unknown"


GiB = 1 << 30


@pytest.mark.parametrize(("free", "verdict"), [(8 * GiB, "ok"), (GiB // 2, "note"), (1 << 20, "wrong"), (0, "wrong")])
def test_shared_memory(free, verdict):
    seen = [limits.Limits("a", None, "/dev/shm", (8 * GiB, 8 * GiB)), limits.Limits("b", None, "/dev/shm", (free, 8 * GiB))]
    finding = limits.judge_shared(seen)
    assert finding.verdict == verdict
    assert finding.text.startswith("/dev/shm: ")
    assert limits.judge_shared([limits.Limits("a", None, "x", Unknown("planted"))]).verdict == "unknown"
    elsewhere = limits.judge_shared([limits.Limits("a", None, "/tmp", (8 * GiB, 8 * GiB))])
    assert (elsewhere.verdict, "/dev/shm cannot be written to" in elsewhere.text) == ("note", True)


def test_locked_memory_is_judged_by_locking_it_where_there_is_a_gpu():
    little, much = limits.Limits("a", 8 << 20, "", (1, 1)), limits.Limits("b", None, "", (1, 1))
    assert limits.judge_pinned([much], [None]).text.startswith("ulimit -l: unlimited")
    assert limits.judge_pinned([much, little], [None, None]).text.startswith("ulimit -l: 8.0 MiB")
    assert limits.judge_pinned([much, little], [(1 << 28, ""), (1 << 28, "")]).text.startswith("256.0 MiB pinned for every rank")
    for locked, said in ((0, "none at all"), (16 << 20, "16.0 MiB")):
        finding = limits.judge_pinned([much, little], [(1 << 28, ""), (locked, "planted")])
        assert finding.verdict == "wrong"
        assert finding.text == (
            f"rank 1 on a cannot pin enough memory for its GPU (planted), but {said}: copies run at a third of the link's speed "
            "or less; ulimit -l: 8.0 MiB"
        )
    assert limits.judge_pinned([limits.Limits("a", Unknown("planted"), "", (1, 1))], [None]).verdict == "unknown"


def link(rank, into, out, together=None, *, pinned=True, host="a"):
    rates = [bandwidth.Rates(into * 1e9, out * 1e9), bandwidth.Rates(together * 1e9, together * 1e9) if together else None]
    return bandwidth.Link(f"GPU-{rank}", rank, host, pinned, *rates)


@pytest.mark.parametrize(
    ("measured", "verdict", "said"),
    [
        ([link(0, 50, 49)], "ok", "1 GPU, copies of pinned memory: host to GPU 50.0 GB/s, GPU to host 49.0 GB/s"),
        ([link(0, 50, 50, 48), link(1, 52, 50, 48)], "ok",
         "host to GPU 50.0 to 52.0 GB/s, GPU to host 50.0 GB/s alone; all of a node at once 96.0 GB/s and 96.0 GB/s"),
        ([link(0, 50, 50, 25), link(1, 50, 50, 25)], "note",
         "host to GPU on a: all at once reach only 50 % of the sum of each alone → a PCIe switch, or one NUMA node"),
        ([link(0, 50, 50, 36), link(1, 50, 50, 36)], "ok", "72.0 GB/s"),
        ([link(0, 50, 50, 48), link(1, 12, 50, 12)], "note",
         "GPU-1 of rank 1 on a has 12.0 GB/s host to GPU, less than half of the 50.0 GB/s of the fastest there → its link"),
        ([link(0, 50, 50, 48), link(1, 50, 12, 12), link(2, 12, 12, 12)], "note", "and 2 more such"),
        ([link(0, 50, 50), link(1, 12, 12, host="b")], "ok", ""),  # GPUs of different hosts are not compared
        ([link(0, 26, 50, 26), link(1, 50, 50, 50)], "ok", ""),
        ([link(0, 8, 8, pinned=False)], "note", "copies of memory that could not be pinned"),
        ([link(0, 0, 50)], "unknown", "no time"),
        ([link(0, 50, 50), link(1, float("nan"), 50)], "unknown", "no time"),
        ([link(0, float("inf"), 50)], "unknown", "no time"),
        ([link(0, 50, 50, float("nan"))], "unknown", "no time"),
        ([link(0, 50, -1)], "unknown", "no time"),
        ([], "ok", "not measured: no GPU that works"),
    ],
)  # fmt: skip
def test_links_are_compared_with_those_of_their_node(measured, verdict, said):
    finding = host_links.judge(bandwidth.Measurements(tuple(measured)))
    assert finding.verdict == verdict, finding
    assert said in f"{finding.text} → {finding.remedy}"


def passage(source, into, rate, **more):
    return bandwidth.PeerCopy(f"GPU-{source}", f"GPU-{into}", rate * 1e9, **more)


REFUSED = bandwidth.Failure("rank 1 on a", "opening", "cannot be opened", died=False)
APART = bandwidth.Isolation((("ipc", "2"), ("pid", "1")), SAME.visible)
BLIND = bandwidth.Isolation(SAME.namespaces, ("GPU-1",))


@pytest.mark.parametrize(
    ("passages", "failure", "around", "verdict", "said"),
    [
        (
            [passage(0, 1, 90), passage(1, 0, 80)],
            None,
            [SAME] * 2,
            "ok",
            "it was correct: 80.0 to 90.0 GB/s, all at the same time",
        ),
        ([passage(0, 1, 90), passage(1, 0, 20)], None, [SAME] * 2, "note", "slowest from GPU-1 to GPU-0"),
        ([], None, [SAME] * 2, "ok", "they share one"),
        ([passage(0, 1, float("nan"))], None, [SAME] * 2, "unknown", "no time"),
        ([passage(0, 1, 0)], None, [SAME] * 2, "unknown", "no time"),
        ([], REFUSED, [SAME] * 2, "note", "each of 2 ranks loads all of B over its GPU's own link, 2 times"),
        ([], REFUSED, [SAME, APART], "note", "different ipc namespaces); the transport host is used"),
        ([], REFUSED, [SAME, APART], "note", "→ start them with --ipc=host"),
        ([], REFUSED, [SAME, BLIND], "note", "→ let every rank see all GPUs"),
        ([], bandwidth.Failure("rank 1 on a", "starting", "planted", died=True), [SAME] * 2, "unknown", "not tried"),
        (
            [],
            bandwidth.Failure("rank 1 on a", "fetching", "no room", died=False),
            [SAME] * 2,
            "unknown",
            "the transport peers is used",
        ),
    ],
)
def test_ranks_that_do_or_do_not_reach_each_other(passages, failure, around, verdict, said):
    moved = bandwidth.Measurements((link(0, 50, 50, 50), link(1, 50, 50, 50)), tuple(passages), failure, nodes=((0, 1),))
    finding = gpu_peers.judge(moved, THREE[:2], around)
    assert finding.verdict == verdict, finding
    assert said in f"{finding.text} → {finding.remedy}"


def test_slices_of_mig_are_told():
    moved = bandwidth.Measurements((link(0, 50, 50),), (), REFUSED, nodes=((0, 1),))
    slices = [Gpu(0, f"GPU-{rank}", "NVIDIA H200 MIG 1g.18gb") for rank in range(2)]
    assert "MIG, which cannot open each other's memory" in gpu_peers.judge(moved, slices, [SAME] * 2).text


@pytest.mark.parametrize(
    ("told", "verdict", "said"),
    [
        ({"pairs": [(0, 1, True, True, 100e9), (1, 0, True, True, 90e9)]}, "ok", "2 pairs copied directly and correctly"),
        ({"pairs": [(0, 1, False, True, 9e9), (1, 0, True, True, 90e9)]}, "note", "1 of 2 pairs have no peer access"),
        ({"pairs": [(0, 1, True, False, 9e9)]}, "wrong", "what arrived in GPU-1 is not what lies in GPU-0"),
        ({"pairs": [(0, 1, True, True, float("inf"))]}, "unknown", "no time"),
        ({"pairs": []}, "ok", "not tried: one GPU"),
        ({"failed": "planted"}, "unknown", "copying from GPU to GPU: planted"),
        ({"ended": "was killed by SIGBUS"}, "wrong", "was killed by SIGBUS → leave peer access out"),
    ],
)  # fmt: skip
def test_one_process_and_all_the_gpus_it_sees(told, verdict, said):
    names = ("source", "target", "direct", "correct", "rate")
    both = {"to_gpu": 50e9, "to_host": 50e9}
    report = {"stage": "done", "links": [{"uuid": "GPU-0", "pinned": True, "alone": both, "together": both}]}
    report["peer_copies"] = [
        dict(zip(names, (f"GPU-{pair[0]}", f"GPU-{pair[1]}", *pair[2:]), strict=True)) for pair in told.get("pairs", [])
    ]
    if "pairs" not in told:
        report |= {"stage": "copying", **{name: told[name] for name in ("failed",) if name in told}}
    moved = bandwidth.collect([ProbeResult(report, told.get("ended", ""))], ["a"], ((0,),), one_process=True)
    finding = gpu_peers.judge(moved, THREE[:1], [SAME])
    assert finding.verdict == verdict, finding
    assert said in f"{finding.text} → {finding.remedy}"
    assert host_links.judge(moved).verdict == "ok"


def test_a_measurement_that_was_cut_off_is_no_all_clear():
    both = {"to_gpu": 50e9, "to_host": 50e9}
    link = {"uuid": "GPU-0", "pinned": True, "alone": both}
    results = [ProbeResult({"stage": "links", "links": [link]}, ""), ProbeResult({}, "")]
    moved = bandwidth.collect(results, ["a", "a"], ((0, 1),))
    assert host_links.judge(moved) == Finding("gpu links", "unknown", "rank 0 on a, links: was ended before it was done")
    nothing = bandwidth.collect([run_command(["/nowhere/at/all"], 1)], ["a"], ((0,),), one_process=True)
    assert "could not be started" in nothing.failure.text
    assert host_links.judge(nothing).verdict == gpu_peers.judge(nothing, THREE[:1], [SAME]).verdict == "unknown"
    assert gpu_peers.judge(bandwidth.Measurements(), [None], [SAME]).text == "not tried: no GPU that works"


def test_gpus_of_several_ranks_are_measured_once():
    shared = [THREE[0], THREE[1], THREE[0], THREE[1], THREE[2]]
    assert bandwidth.first_rank_of_each_gpu(((0, 1, 2), (3, 4)), shared) == [[0, 1], [3, 4]]


TOOLS = compilers.Tools("/usr/bin/g++", "", False, (("/cache", ""),))


def test_hosts_with_the_same_tools_take_one_line():
    assert verdicts(compilers.judge([TOOLS, None, TOOLS], ["a", "a", "b"], gpus=False)) == ["ok", "ok"]
    none = compilers.Tools("", "apt-get install g++", True, (("/cache", ""),))
    findings = compilers.judge([TOOLS, None, none], ["a", "a", "b"], gpus=False)
    assert [(finding.verdict, finding.text[:11]) for finding in findings if finding.subject == "compiler"] == [
        ("ok", "a (rank 0):"), ("note", "b (rank 2):")
    ]  # fmt: skip
    assert compilers.judge([none], ["a"], gpus=True)[0].verdict == "ok"
    assert compilers.judge([Unknown("planted")], ["a"], gpus=False)[0].verdict == "unknown"


JOB = {"JOB_ID": "7", "NTASKS": "2", "JOB_NUM_NODES": "1"}
STEP = {**JOB, "STEP_NUM_TASKS": "2", "STEP_NUM_NODES": "1"}


@pytest.mark.parametrize(
    ("seen", "cores", "with_gpu", "nodes", "together", "verdict", "said"),
    [
        ([{}] * 2, [4] * 2, [False] * 2, (2,), True, "ok", "not in a job"),
        ([STEP] * 2, [4] * 2, [False] * 2, (2,), True, "ok",
         "job 7 has 2 tasks, 1 node, an unknown number of CPUs a task; MPI has 2 ranks on 1 node"),
        ([{**STEP, "CPUS_PER_TASK": "4"}] * 2, [4, 2], [False] * 2, (2,), True, "wrong",
         "rank 1 may use 2 cores only → srun does not take -c"),
        ([{**STEP, "STEP_GPUS": "0,1"}] * 2, [4] * 2, [True, False], (2,), True, "wrong", "rank 1 cannot use any"),
        ([{**STEP, "GPUS_ON_NODE": "2"}] * 2, [4] * 2, [True] * 2, (2,), True, "ok", ""),
        ([{**STEP, "GPUS_ON_NODE": "0"}] * 2, [4] * 2, [False] * 2, (2,), True, "ok", ""),
        ([JOB], [4], [False], (1,), False, "note", "this is one process; srun or mpirun starts it as 2 ranks"),
        ([{**JOB, "NTASKS": "4"}] * 2, [4] * 2, [False] * 2, (2,), True, "note", "fewer ranks than tasks"),
        ([{**JOB, "JOB_NUM_NODES": "3"}] * 2, [4] * 2, [False] * 2, (1, 1), True, "note", "some nodes of the job have no rank"),
        ([{**JOB, "NTASKS": "8", "JOB_NUM_NODES": "2"}] * 2, [4] * 2, [False] * 2, (2,), True, "note",
         "on 1 node: fewer ranks than tasks, some nodes of the job have no rank"),
        ([{**JOB, "NTASKS": "1"}] * 2, [4] * 2, [False] * 2, (2,), True, "note", "more ranks than tasks"),
        ([{**STEP, "JOB_NUM_NODES": "3"}] * 2, [4] * 2, [False] * 2, (1, 1), True, "ok", ""),
        ([{"JOB_ID": "7", "NTASKS": "many"}], [4], [False], (1,), True, "ok", ""),
    ],
)  # fmt: skip
def test_slurms_view_against_the_ranks(seen, cores, with_gpu, nodes, together, verdict, said):
    finding = slurm.judge(seen, cores, with_gpu, of_nodes(*nodes), launched=together)
    assert finding.verdict == verdict, finding
    assert said in f"{finding.text} → {finding.remedy}"


def test_slurm_is_read_from_the_environment():
    assert slurm.inspect({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "", "HOME": "/"}) == {"JOB_ID": "7"}


def test_a_screen_counts_what_is_wrong():
    ok, wrong, unknown = Finding("a", "ok", "x"), Finding("bc", "wrong", "y", "z"), Finding("d", "unknown", "u")
    assert as_text([ok]).splitlines() == ["ok       a  x", "nothing is wrong"]
    assert as_text([wrong, ok]).splitlines() == ["WRONG    bc  y → z", "ok       a   x", "1 finding is wrong"]
    assert as_text([wrong, wrong, unknown]).splitlines()[-1] == "2 findings are wrong, 1 unknown"
    assert Examination((ok, unknown), (), ()).ok
    assert not Examination((ok, wrong), (), ()).ok
