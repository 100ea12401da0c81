# SPDX-License-Identifier: MIT
"""hybrid.testing does what it says: each fault happens where it was asked for and nowhere else, and nothing of it stays."""

import json
import os
import re
import secrets
import signal
import sys

import numpy as np
import pytest
from support.commands import module, start
from support.forked import quickly
from support.selection import exhaustive

import hybrid
import hybrid.testing
from hybrid.errors import HybridError, UsageError

SPOILS = ("element", "lowest bit", "sign", "zero", "nan", "stale row", "rows swapped", "columns swapped", "shifted row",
          "shifted column", "nothing")  # fmt: skip
# By where a fault is: its kind, and settings for it.
WAYS = {
    "in place": ("multiply", {}),
    "staged": ("multiply", {"staged": True, "panel_rows": 3}),
    "emulated": ("multiply", {"device": "emulate"}),
    "copies in": ("copy in", {"staged": True}),
    "copies out": ("copy out", {"staged": True}),
    "between nodes": ("arrive", {"ranks_per_node": 1, "transport": "host"}),
    "between devices": ("arrive", {"staged": True, "transport": "peers"}),
}
FORMS = ("root", "row blocks", "stack", "grid")
TYPES = ("float64", "float32", "float16", "complex128", "int64")
SHAPES = ((8, 6, 7), (1, 7, 9), (9, 7, 1), (1, 5, 1))
CASES = 8  # drawn for each way

pytestmark = pytest.mark.exhaustive(above=2)


@pytest.fixture(params=["alone", pytest.param("ranks", marks=pytest.mark.mpi)])
def comm(request):
    from mpi4py import MPI

    return MPI.COMM_WORLD if request.param == "ranks" else MPI.COMM_SELF


def multiply(comm, a, b, form="root"):
    """A · B by all ranks, unchecked: what this rank gets of it."""
    given, root = (None, None), None
    if form in ("root", "stack"):
        root = comm.size - 1
        if comm.rank == root:
            given = (a, b) if form == "root" else (np.stack([a] * 4), np.stack([b] * 4))
    else:
        places = [slice(comm.rank * len(each) // comm.size, (comm.rank + 1) * len(each) // comm.size) for each in (a, b)]
        if form == "row blocks":
            given = [hybrid.RowBlock(each[rows].copy()) for each, rows in zip((a, b), places, strict=True)]
        else:
            given = [hybrid.Block2D(each[rows].copy(), each.shape, [(rows.start, rows.stop)], [(0, each.shape[1])])
                     for each, rows in zip((a, b), places, strict=True)]  # fmt: skip
    product = hybrid.multiply(*given, comm=comm, check=False, **({} if root is None else {"root": root}))
    return getattr(product, "array", product)


def same(one, other):
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    return one is other is None


def drawn(rng, number, size):
    """Form, spoil, type, shape and the rank that is wrong. The first case is one in which each fault changes C."""
    if not number:
        return "root", "element", "float64", SHAPES[0], 0
    form, how, dtype = (str(rng.choice(each)) for each in (FORMS, SPOILS, TYPES))
    how = "element" if (dtype, how) == ("int64", "nan") else how
    return form, how, dtype, SHAPES[rng.integers(len(SHAPES))], int(rng.integers(size))


@pytest.mark.parametrize("way", WAYS)
def test_what_is_planted_happens_once_on_the_rank_that_was_named(comm, rng, way):
    if way == "emulated" and hybrid.testing.lacking("compiler"):
        pytest.skip("needs a C++ compiler")
    kind, settings = WAYS[way]
    if comm.size == 1:
        settings = {name: value for name, value in settings.items() if name != "transport"}
    for number in range(CASES):
        form, how, dtype, shape, victim = case = drawn(rng, number, comm.size)
        n, l, m = shape
        if way == "between devices":  # where no rank may have nothing, and which grids and stacks do without
            form, (n, l, m) = ("root" if number % 2 else "row blocks"), SHAPES[0]
        a, b = (matrix.astype(dtype) for matrix in (8 * rng.standard_normal((n, l)), 8 * rng.standard_normal((l, m))))
        with hybrid.testing.pretend(**settings):
            right = multiply(comm, a, b, form)
            with hybrid.testing.plant(kind, victim, times=0, how=how) as counted:
                assert same(multiply(comm, a, b, form), right), case
            seen = comm.bcast(counted.seen, victim)
            at = int(rng.integers(seen)) if seen else 0
            with hybrid.testing.plant(kind, victim, at, how=how) as planted:
                try:
                    found = multiply(comm, a, b, form)
                except HybridError as error:  # where no right product of integers gives such numbers
                    found = error
            is_done = comm.allgather(planted.done)
            assert is_done == [rank == victim and seen > 0 for rank in range(comm.size)], (case, at)
            assert planted.seen == (seen if comm.rank == victim else 0) or isinstance(found, HybridError), (case, at)
            changed = any(comm.allgather(not same(found, right)))
            assert changed or not seen or how == "lowest bit" or (number and kind in ("copy in", "arrive")), (case, at)
            assert same(multiply(comm, a, b, form), right), case
        if number == 0:
            assert seen or (kind == "arrive" and comm.size == 1), "the first case is to have the fault"


def test_a_spoil_does_what_its_name_says(rng):
    a, b = rng.standard_normal((5, 3)), rng.standard_normal((3, 4))
    right, before = a @ b, np.full((5, 4), 5.0)

    def others(found):
        return np.argwhere(found != right).tolist()

    says = {
        "element": lambda c: len(others(c)) == 1 and abs(c - right).max() >= (1 - 1e-12) * abs(right).max(),
        "lowest bit": lambda c: others(c) == [[4, 3]] and np.allclose(c, right, rtol=1e-15, atol=0),
        "sign": lambda c: len(others(c)) == 1 and same(abs(c), abs(right)),
        "zero": lambda c: len(others(c)) == 1 and (c == 0).sum() == 1,
        "nan": lambda c: len(others(c)) == 1 and np.isnan(c).sum() == 1,
        "stale row": lambda c: same(c, np.vstack([right[:4], before[4:]])),
        "rows swapped": lambda c: same(c, right[[4, 1, 2, 3, 0]]),
        "columns swapped": lambda c: same(c, right[:, [3, 1, 2, 0]]),
        "shifted row": lambda c: same(c, np.roll(right, 1, axis=0)),
        "shifted column": lambda c: same(c, np.roll(right, 1, axis=1)),
        "nothing": lambda c: same(c, before),
        "lost k": lambda c: np.allclose(c, a[:, :2] @ b[:2]),
    }
    assert set(says) == {*SPOILS, "lost k"}
    right = hybrid.multiply(a, b)
    for how, is_so in says.items():
        out = before.copy()
        with hybrid.testing.plant("multiply", how=how):
            hybrid.multiply(a, b, out=out, check=False)
        assert is_so(out), (how, out, right)


def test_a_function_gets_what_was_written_what_it_was_made_of_and_what_was_there(rng):
    a, b = rng.standard_normal((5, 3)), rng.standard_normal((3, 4))
    seen = []

    def spoil(into, source, before):
        seen.append((into.copy(), *source, before))
        into[2, 1] = 77

    out = np.full((5, 4), 5.0)
    with hybrid.testing.plant("multiply", how=spoil, times=None) as planted:
        hybrid.multiply(a, b, out=out, check=False)
    assert planted.done
    assert all(same(one, other) for one, other in zip(seen[0][1:], (a, b, np.full((5, 4), 5.0)), strict=True))
    seen[0][0][2, 1] = 77
    assert same(out, seen[0][0])
    with hybrid.testing.plant("multiply", how=lambda into, source, before: None) as planted:
        hybrid.multiply(a, b)
    assert planted.seen
    assert not planted.done


def checked(comm, a, b):
    return hybrid.multiply(*((a, b) if comm.rank == 0 else (None, None)), comm=comm)


def everything_in_the_package():
    """Each function and class of the package, and each attribute of its classes, by name."""
    owners = {name: vars(module) for name, module in [*sys.modules.items()] if name.startswith("hybrid.")}
    classes = {
        f"{name}.{key}": vars(value) for name, owner in owners.items() for key, value in owner.items() if type(value) is type
    }
    everything = {**owners, **classes, "os": vars(os), "secrets": vars(secrets)}
    return {(name, key): id(value) for name, owner in everything.items() for key, value in [*owner.items()] if callable(value)}


def test_nothing_is_left_of_it_after_an_exception():
    planted = []

    def all_at_once():
        with (
            hybrid.testing.pretend(staged=True, panel_rows=2),
            hybrid.testing.seed(1),
            hybrid.testing.plant("multiply", times=None) as one,
            hybrid.testing.plant("copy in", times=None, how="nan"),
            hybrid.testing.plant("arrive"),
            hybrid.testing.plant("disk", how="full"),
            hybrid.testing.plant("clock", how="even"),
            hybrid.testing.count() as counts,
            hybrid.testing.plant("rank", how="raise", phase="check"),
        ):
            planted.append((one, counts))
            hybrid.multiply(np.eye(4), np.eye(4))

    hybrid.multiply(np.eye(2), np.eye(2))
    for _ in range(2):  # the first time modules are loaded
        before, variables = everything_in_the_package(), dict(os.environ)
        with pytest.raises(ValueError, match="planted"):
            all_at_once()
        after = everything_in_the_package()
        assert {key: value for key, value in after.items() if key in before} == before
        assert dict(os.environ) == variables
    assert after == before
    told = repr(planted)
    with hybrid.testing.plant("multiply", times=0) as last, hybrid.testing.count():
        assert same(hybrid.multiply(np.eye(4), np.eye(4), check=False), np.eye(4))
    assert last.seen == 1
    assert repr(planted) == told


def test_what_is_no_fault_is_refused():
    for kind, how in (
        ("multiply", "bitflip"), ("rank", "SIGNAL"), ("rank", "exit"), ("disk", None), ("clock", "fast"), ("kernel", "sign"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no fault"), hybrid.testing.plant(kind, how=how):
            pass
    with pytest.raises(KeyError):
        hybrid.testing.lacking("time")
    with pytest.raises(UsageError), hybrid.testing.pretend(colour="red"):
        pass
    with pytest.raises(UsageError), hybrid.testing.pretend(threads=3, ranks_per_node=-1):
        pass
    assert "HYBRID_THREADS" not in os.environ


def test_what_is_pretended_is_restored(monkeypatch):
    monkeypatch.setenv("HYBRID_THREADS", "1")
    with hybrid.testing.pretend(threads=None, staged=True, host_memory="1M"):
        assert "HYBRID_THREADS" not in os.environ
        assert os.environ["HYBRID_STAGED"] == "1"
        with hybrid.testing.pretend(staged=False, threads=2):
            assert os.environ["HYBRID_THREADS"] == "2"
    assert os.environ["HYBRID_THREADS"] == "1"
    assert "HYBRID_STAGED" not in os.environ


def test_bytes_and_exchanges_are_counted(comm, rng):
    a, b = rng.standard_normal((8, 6)), rng.standard_normal((6, 4000))
    with hybrid.testing.pretend(staged=True, ranks_per_node=1, transport="host"):
        checked(comm, a, b)
        with hybrid.testing.count() as counts:
            checked(comm, a, b)
    assert counts.multiplications == 1
    copied = [sum(each) for each in zip(*comm.allgather((counts.copied_in, counts.copied_out)), strict=True)]
    assert copied == [a.nbytes + comm.size * b.nbytes, 8 * 4000 * 8]
    assert len(set(comm.allgather(counts.exchanges))) == 1
    if comm.size == 1:
        assert (counts.exchanges, counts.bytes_sent) == (0, 0)
    elif comm.rank == 0:
        assert counts.bytes_sent > b.nbytes
    else:
        assert 8 // comm.size * 4000 * 8 < counts.bytes_sent < b.nbytes
    assert counts == (before := type(counts)(**vars(counts)))
    checked(comm, a, b)
    assert counts == before


def started(*options, command=("-m", "hybrid.matmul", 48, 40, 44), ranks=0, by=quickly, **how):
    return by(module("hybrid.testing"), *options, *command, ranks=ranks, limit=120, **how)


def record(tmp_path, *options, **how):
    command = ("-m", "hybrid.matmul", 48, 40, 44, "--fill", "normal", "--json", tmp_path / "json")
    done = started(*options, command=command, **how)
    assert done.returncode == 0, done.stderr
    return json.loads((tmp_path / "json").read_text().splitlines()[-1])


def test_the_check_s_vectors_follow_from_the_seed(tmp_path, monkeypatch):
    """By NumPy's form of the sums in each run: the compiled form, which rounds in another order, may become ready in between."""
    monkeypatch.setenv("CC", str(tmp_path / "no compiler"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    errors = [record(tmp_path, "--seed", seed, by=start)["check"]["error"] for seed in (1, 1, 2)]
    assert errors[0] == errors[1] != errors[2]


@pytest.mark.parametrize(("how", "seconds"), exhaustive([("slow 4", 4.0)], [("even", 1.0), ("slow 4", 4.0)]))
def test_a_clock_tells_what_was_planted(tmp_path, how, seconds):
    phases = record(tmp_path, "--pretend", "staged=1", "--pretend", "panel_rows=16", "--plant", f"clock how={how}")["seconds"]
    assert phases["multiply"]["median"] == pytest.approx(seconds)


FAILS = [
    ("rank rank=1 phase=start how=SIGKILL", 2, 137),
    ("rank rank=0 phase=MPI start how=SIGTERM", 2, 143),
    ("arrive rank=1 how=element", 2, 3),
    ("rank how=raise", 0, 1),
    ("rank rank=0 phase=wait at=2 how=SIGINT", 2, 1),
    ("rank rank=1 phase=gather how=exit 5", 2, 1),
    ("rank rank=1 how=exit 0", 2, 1),
    ("rank rank=2 phase=scatter how=memory", 3, 1),
    ("multiply rank=1 how=stale row", 2, 3),
]


@pytest.mark.parametrize(("fault", "ranks", "code"), exhaustive(FAILS[:5], FAILS))
@pytest.mark.launcher
def test_a_command_s_rank_fails_as_asked(tmp_path, fault, ranks, code):
    report = tmp_path / "report"
    done = started("--pretend", "ranks_per_node=1", "--report", report, "--plant", fault, ranks=ranks)
    assert done.returncode == code, done.stderr
    told = [json.loads(line) for line in report.read_text().splitlines()]
    wanted = int(found[1]) if (found := re.search(r"rank=(\d)", fault)) else 0
    assert [(each["fault"], each["rank"]) for each in told] == [(fault, wanted)]


def test_a_disk_fails_at_each_of_its_operations(tmp_path):
    out, operations = tmp_path / "c.npy", 0
    command = ("-m", "hybrid.matmul", 8, 6, 7, "--out", out)

    def report(fault):
        """The exit code, and how often it was told that the fault had happened."""
        told = tmp_path / f"{fault}.txt"
        code = started("--report", told, "--plant", fault, command=command).returncode
        return code, len(told.read_text().splitlines()) if told.exists() else 0

    while (found := report(f"disk at={operations} how=killed before")) != (0, 0):
        assert (found, out.exists()) == ((128 + signal.SIGKILL, 1), False)
        operations += 1
    assert operations >= 3, "rows are written, the file is flushed and renamed"
    out.unlink()
    assert report("disk how=full") == (1, 1)
    sizes = []
    for how in ("amid", "after"):
        assert report(f"disk how=killed {how}") == (128 + signal.SIGKILL, 1)
        (part,) = tmp_path.glob(".*.part")
        sizes.append(part.stat().st_size)
    assert 0 < sizes[0] < sizes[1]


@pytest.mark.needs("compiler")
def test_numpy_s_gpus_tell_a_program_in_whose_context_it_is(tmp_path):
    (tmp_path / "program.py").write_text(
        "import cupy, hybrid\nones = cupy.asarray([[1.0, 1.0]])\n"
        "try:\n    cupy.cuda.alloc(1)\nexcept RuntimeError:\n    print('refused')\n"
        "print(hybrid.multiply(ones, ones.T, device='cuda').get(), cupy.cuda.driver.ctxGetCurrent())\n"
    )
    done = started("--gpus", 1, command=(tmp_path / "program.py",))
    assert done.stdout == "refused\n[[2.]] 1\n", done.stderr


def test_a_program_is_run_and_a_function_of_a_file_is_planted(tmp_path):
    (tmp_path / "faults.py").write_text("def spoil(into, source, before):\n    into[0, 0] = 99\n")
    (tmp_path / "beside.py").write_text("import numpy as np\nONES = np.ones((2, 2))\n")
    (tmp_path / "program.py").write_text(
        "import sys, hybrid, beside\nassert __file__.endswith(sys.argv[0])\n"
        "print(sys.argv[1:], hybrid.multiply(beside.ONES, beside.ONES, check=False)[0])\n"
    )
    for command in (("program.py",), ("-m", "program")):
        done = started("--plant", "multiply how=faults.py:spoil", command=(*command, "x", "-m"), cwd=tmp_path)
        assert done.stdout == "['x', '-m'] [99.  2.]\n", done.stderr


@pytest.mark.parametrize(
    "options", [["--plant", "kernel"], ["--plant", "multiply at=x"], ["--pretend", "x=1"], ["--pretend", "x"], []]
)
def test_wrong_options_are_refused(options):
    assert started(*options, command=("-m", "hybrid.matmul", 2, 2, 2) if options else ()).returncode == 2
