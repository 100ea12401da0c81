# SPDX-License-Identifier: MIT
"""What is special on GPUs, and products at random on them: on_gpus.py SEED COUNT. NumPy stands for them, one for each rank,
through `python -m hybrid.testing --gpus N`."""

import itertools
import re
import sys
import warnings
import weakref
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import cupy
import ml_dtypes
import numpy as np
from mpi4py import MPI
from support import cases

import hybrid
import hybrid.testing
from hybrid.errors import CheckFailed, DoesNotFit, HybridError, Overflow, UsageError
from hybrid.testing import numpy_cupy

comm = MPI.COMM_WORLD
rng = np.random.default_rng(11)  # the same on all ranks
ON_GPU = {"comm": comm, "device": "cuda"}


def at_root(*arrays):
    return arrays if comm.rank == 0 else (None,) * len(arrays)


def blocks(kind, *matrices):
    return [hybrid.RowBlock(kind(np.array_split(each, comm.size)[comm.rank])) for each in matrices]


def whole(c):
    return np.concatenate(comm.allgather(np.asarray(cupy.asnumpy(c))))


def refusal(error, *given, **how):
    """The code with which all ranks refuse a product."""
    try:
        hybrid.multiply(*given, **how)
    except error as refused:
        return refused.code
    except HybridError as other:
        raise AssertionError(f"{other} [{other.code}]") from other
    raise AssertionError("not refused")


def off_by_one(into, source, before):
    into[1, 1] += 1


def integers_stay_there():
    """And C lies where A does, whatever lies elsewhere."""
    a, b, c = (
        rng.integers(-(2**31), 2**31, (12, 10), "int32"),
        rng.integers(-99, 99, (10, 8), "int32"),
        np.full((12, 8), 7, "int32"),
    )
    wanted = a.astype(object) @ b.astype(object) + c
    for number in (0, 3, 5, 6):  # any two of A, B and C lie together and apart
        rows = [
            block
            for bit, each in enumerate((a, b, c))
            for block in blocks(cupy.asarray if number >> bit & 1 else np.asarray, each)
        ]
        found = hybrid.multiply(*rows, beta=1, dtype="int64", **ON_GPU).array
        assert type(found) is (cupy.ndarray if number & 1 else np.ndarray)
        assert whole(found).tolist() == wanted.tolist()
    assert refusal(Overflow, *blocks(cupy.asarray, a, b), dtype="int8", **ON_GPU) == "overflow"
    with hybrid.testing.plant("multiply", 0, how=off_by_one):  # modulo a prime: so large an element is no overflow
        assert (
            refusal(CheckFailed, *blocks(cupy.asarray, a.astype(int) << 9, b.astype(int) << 9), check=False, **ON_GPU)
            == "check-product"
        )


def integers_cross_the_link_in_their_own_types():
    """And so does C, of vectors, of views, of operands that differ in type and in where they lie, with a C that is added."""
    if comm.size > 1:
        return
    kinds = ("int8", "int32"), ("uint8", "uint32"), ("int16", "int64"), ("int32", "int64"), ("int64", "int64"), ("bool", "int16")
    for (dtype, result), (n, l, m) in itertools.product(kinds, ((40, 30, 50), (1, 9, 1), (0, 3, 5))):
        low, high = (0, 2) if dtype == "bool" else (max(-(2**29), np.iinfo(dtype).min), min(2**29, np.iinfo(dtype).max))
        a, b = (rng.integers(low, high, shape).astype(dtype) for shape in ((n, l), (l, m)))
        c, how = np.full((n, m), 3, "int8"), {"device": "cuda", "dtype": result}
        wanted = a.astype(object) @ b.astype(object)
        with hybrid.testing.count() as counts:
            found = hybrid.multiply(a, b, **how)
        assert (counts.copied_in, counts.copied_out) == (a.nbytes + b.nbytes, found.nbytes)
        assert {dtype, result} <= {*re.findall(r"\w+", hybrid.plan(a, b, **how).explain())}
        assert (type(found), found.dtype, found.tolist()) == (np.ndarray, result, wanted.tolist())
        out = np.full((m, n), 99, result).T  # not in row-major order
        backwards, swapped = a[::-1].copy()[::-1], a.astype(a.dtype.newbyteorder())
        for first, second in ((backwards, b), (np.asfortranarray(a), cupy.asarray(b)), (swapped, b)):
            assert hybrid.multiply(first, second, c, beta=2, **how, out=out) is out
            assert out.tolist() == (wanted + 6).tolist()
        there = cupy.asarray(np.full((n, m), 99, result))
        assert hybrid.multiply(a, b, **how, out=there) is there
        assert cupy.asnumpy(there).tolist() == wanted.tolist()
        with hybrid.testing.count() as counts:
            found = hybrid.multiply(a, a.T, **how)
        assert counts.copied_in == a.nbytes
        assert found.tolist() == (a.astype(object) @ a.T.astype(object)).tolist()
        if n:
            assert np.array_equal(hybrid.multiply(a[0], b[:, 0], **how), a[0].astype(result) @ b[:, 0].astype(result))
    a, b = rng.integers(-99, 99, (40, 1040), "int8"), rng.integers(-99, 99, (1040, 50), "int8")
    for fault in ("copy in", "copy out"):
        for at in (0, 1):  # whole rows of memory, and what is left of them
            with hybrid.testing.plant(fault, at=at) as planted:
                assert refusal(CheckFailed, a[:39, :1039], b[:1039], dtype="int32", **ON_GPU).startswith("check-")
            assert planted.done
        with hybrid.testing.plant(fault), warnings.catch_warnings(record=True) as warned:
            found = hybrid.multiply(a, b, dtype="int64", on_fault="repair", **ON_GPU)
        assert len(warned) == 1
        assert np.array_equal(found, a.astype(int) @ b.astype(int))
    c = np.full((40, 50), 3, "int64")
    with hybrid.testing.plant("copy out", at=1):  # to the host: what was there before cannot be added again
        how = {"beta": 1, "dtype": "int64", "on_fault": "repair"}
        assert refusal(CheckFailed, a, b, c, out=c, **how, **ON_GPU) == "check-copy"
    a[3, 4], b[:, 5] = 127, 127
    assert refusal(Overflow, a, b, dtype="int8", **ON_GPU) == "overflow"


def results_of_16_bits_are_rounded_there():
    """To what the host rounds them to, also NaN and infinity; and what is multiplied, rounded or copied wrong is refused."""
    if comm.size > 1:
        return
    for dtype, (n, l, m) in itertools.product(("float16", ml_dtypes.bfloat16), ((40, 64, 50), (33, 41, 27))):
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((n, l), (l, m)))
        hybrid.multiply(a, b, device="cuda")  # makes the buffers
        for number in range(3):
            out = np.full((n, m), 7, dtype) if number else None
            with hybrid.testing.count() as counts:
                found = hybrid.multiply(a, b, device="cuda", out=out)
            assert out is None or found is out
            assert (counts.copied_in, counts.copied_out) == (a.nbytes + b.nbytes, found.nbytes)
            with np.errstate(all="ignore"):
                wanted = hybrid.multiply(a, b, device="cuda", dtype="float32").astype(dtype)
            assert np.array_equal(found.view("u2"), wanted.view("u2"))
            a[number, number], a[number + 3] = np.nan, 6e4
        a = rng.standard_normal((n, l)).astype(dtype)
        for fault, at in (("multiply", 0), ("copy in", 0), ("copy in", 1), ("copy out", 0), ("copy out", 1)):
            with hybrid.testing.plant(fault, at=at) as planted:
                assert refusal(CheckFailed, a, b, device="cuda") == (
                    "check-copy" if at or fault == "copy in" else "check-product"
                )
            assert planted.done


def in_little_memory():
    a, b = rng.integers(-(2**30), 2**30, (40, 30)), rng.integers(-99, 99, (30, 50), "int32")
    found = hybrid.multiply(*blocks(cupy.asarray, a, b), gpu_memory=40_000, **ON_GPU).array
    assert type(found) is cupy.ndarray
    assert whole(found).tolist() == (a @ b).tolist()
    assert refusal(DoesNotFit, *blocks(cupy.asarray, a, b), host_memory=1000, **ON_GPU) == "host-memory"


def transposes_arrive_as_they_lie():
    """Of a root's matrices on the host each element is copied to its GPU once."""
    if comm.size > 1:
        return
    a, b = rng.standard_normal((70, 90)), rng.standard_normal((60, 70))
    with hybrid.testing.count() as counts:
        c = hybrid.multiply(a, b, transpose_a=True, transpose_b=True, device="cuda", precision="native")
    np.testing.assert_allclose(c, a.T @ b.T)
    assert (counts.copied_in, counts.copied_out) == (a.nbytes + b.nbytes, c.nbytes)
    with hybrid.testing.count() as counts:
        c = hybrid.multiply(cupy.asarray(a), cupy.asarray(b), transpose_a=True, transpose_b=True)
    assert (counts.copied_in, counts.copied_out) == (0, 0)


def products_with_the_own_transpose_are_symmetric():
    """Beside others of the same shapes, which are not; of arrays in host memory and on the GPU."""
    if comm.size > 1:
        return
    a, b = rng.standard_normal((2, 300, 300))
    for first, second in ((a, b), (cupy.asarray(a), cupy.asarray(b))):
        with hybrid.testing.pretend(panel_rows=128):
            for _ in range(2):  # the second time with what is kept
                for x, y in ((first, first.T), (first.T, first), (first, second), (first, first), (first, first.T)):
                    found = cupy.asnumpy(hybrid.multiply(x, y, **ON_GPU))
                    np.testing.assert_allclose(found, cupy.asnumpy(x) @ cupy.asnumpy(y), atol=1e-11)
                    assert y is second or x is y or np.array_equal(found, found.T)


def results_are_written_to_arrays_there():
    """Of matrices, vectors and stacks, wherever the operands lie, and also to the C that is added."""
    a, b = rng.integers(-9, 9, (3, 20, 10)).astype(float), rng.integers(-9, 9, (10, 30)).astype(float)
    for first, second, kind in (
        (a[0], b, cupy.asarray), (a[0], b, np.asarray), (a[0], b[:, 0], cupy.asarray), (a, b, cupy.asarray),
    ):  # fmt: skip
        out = cupy.asarray(np.full((first @ second).shape, 7.0))
        given = [kind(each) for each in (first, second)]
        found = hybrid.multiply(*at_root(*given), **ON_GPU, out=out if comm.rank == 0 else None)
        assert comm.rank or (found is out and np.array_equal(cupy.asnumpy(out), first @ second))
    c = cupy.asarray(np.ones((20, 30)))
    given = at_root(cupy.asarray(a[0]), cupy.asarray(b), c)
    hybrid.multiply(*given, beta=2, **ON_GPU, out=c if comm.rank == 0 else None)
    assert comm.rank or np.array_equal(cupy.asnumpy(c), a[0] @ b + 2)
    wrong = cupy.asarray(np.ones((20, 31)))
    assert refusal(UsageError, *given[:2], **ON_GPU, out=wrong if comm.rank == 0 else None) == "out"


def products_like_the_one_before():
    """Of matrices at the same places with other elements, at others, and written to given arrays; a wrong one is found in each,
    and no call keeps an array alive."""
    if comm.size > 1:
        return
    for kind, faults in ((cupy.asarray, ["multiply"]), (np.array, ["multiply", "copy in", "copy out"])):
        for check, (n, l, m) in itertools.product((True, False, "host"), ((70, 90, 50), (33, 41, 27))):  # aligned rows, and not
            how = {"check": check, "device": "cuda"}
            a, b = (kind(rng.integers(-9, 9, shape).astype(float)) for shape in ((n, l), (l, m)))
            out, passed = kind(np.zeros((n, m))), []
            for number in range(6):
                a[number, :] = float(number)
                first = a if number > 3 else kind(cupy.asnumpy(a))
                into = None if number % 3 else out
                c = hybrid.multiply(first, b, out=into, **how)
                passed += [] if first is a else [weakref.ref(first)]
                assert (c is out) == (into is out)
                assert np.array_equal(cupy.asnumpy(c), cupy.asnumpy(a) @ cupy.asnumpy(b))
                c = hybrid.multiply(kind(cupy.asnumpy(a).T), b.T, transpose_a=True, transpose_b=True, **how)
                assert np.array_equal(cupy.asnumpy(c), cupy.asnumpy(a) @ cupy.asnumpy(b))
                c = hybrid.multiply(kind(np.asfortranarray(cupy.asnumpy(a))), b, **how)
                assert np.array_equal(cupy.asnumpy(c), cupy.asnumpy(a) @ cupy.asnumpy(b))
            for fault in faults if check else ():
                with hybrid.testing.plant(fault):
                    assert refusal(CheckFailed, a, b, **how).startswith("check-")
            assert refusal(UsageError, a, b, out=a, **how) == "out"
            first = kind(cupy.asnumpy(a))
            passed.append(weakref.ref(first))
            hybrid.multiply(first, b, **how)
            del first
            assert not any(each() is not None for each in passed)


def a_lost_launch_is_found():
    """A product like the one before, whose multiplication does not run, has C of the one before: its check refuses it."""
    if comm.size > 1:
        return
    a, b = (cupy.asarray(rng.standard_normal((40, 40))) for _ in "ab")
    out, enqueue, lost = cupy.asarray(np.zeros((40, 40))), numpy_cupy._enqueue, []

    def losing(stream, work):
        source = getattr(getattr(work, "__self__", None), "_function", ("check.cu",))[0]
        if source == "check.cu":
            enqueue(stream, work)
        else:
            lost.append(source)

    for _ in range(4):
        hybrid.multiply(a, b, out=out)
    numpy_cupy._enqueue = losing
    hybrid.multiply(a, b, out=out)  # C is right still
    a[3, :] = 1.0
    assert refusal(CheckFailed, a, b, out=out) == "check-product"
    numpy_cupy._enqueue = enqueue
    assert len(lost) == 2
    wanted, onto = cupy.asnumpy(a) @ cupy.asnumpy(b), cupy.asarray(cupy.asnumpy(b))
    assert np.allclose(cupy.asnumpy(hybrid.multiply(a, onto, out=onto)), wanted)
    assert np.allclose(cupy.asnumpy(hybrid.multiply(a, b, out=out)), cupy.asnumpy(a) @ cupy.asnumpy(b))


def small_products_are_left_to_the_cpu():
    """Of a process alone that asks for no GPU; those of large matrices are not, nor are any that lie on the GPU."""
    if comm.size > 1:
        return
    a, b, wide = rng.standard_normal((30, 20)), rng.standard_normal((20, 10)), np.broadcast_to(0.0, (30_000, 30_000))
    for given, device in (((a, b), "cpu"), ((wide, wide), "cuda"), ((cupy.asarray(a), cupy.asarray(b)), "cuda")):
        plan = hybrid.plan(*given, check=False, host_memory="1T", gpu_memory="1M" if given[0] is not wide else None)
        assert f" on {device}: " in plan.explain(), plan.explain()
    assert " on cuda: " in hybrid.plan(a, b, device="cuda").explain()


class Foreign:
    """An array of another library in GPU memory, also such as the host can read."""

    def __init__(self, array, kind):
        self._array, self._kind = array, kind

    def __dlpack_device__(self):
        return self._kind, 0

    def __dlpack__(self, **how):
        return self._array.__dlpack__(**how)


def other_libraries_arrays_stay_there():
    a, b = rng.integers(-9, 9, (20, 10)).astype(float), rng.integers(-9, 9, (10, 30)).astype(float)
    for kind in (2, 13):  # kDLCUDA, kDLCUDAManaged
        found = hybrid.multiply(*at_root(Foreign(a, kind), Foreign(b, kind)), **ON_GPU)
        assert comm.rank or (type(found) is cupy.ndarray and np.array_equal(cupy.asnumpy(found), a @ b))


def products_at_random(seed, count):
    """By several ranks those of a root."""
    several, nodes = comm.size > 1, {"RANKS_PER_NODE": "1"}
    ways = {
        name: way for name, way in cases.ON_GPU.items() if name != "GPU, cublas" and not (several and way.flags.get("kernel"))
    }
    for kernel in ("naive", "tiled", "register_tiled", "pipelined", "warp_tiled"):
        ways[f"GPU {kernel}"] = cases.Way({"device": "cuda", "kernel": kernel}, {})
    if several:
        ways |= {
            "GPUs of other nodes": cases.Way({"device": "cuda"}, nodes),
            "GPUs, through the host": cases.Way({"device": "cuda", "transport": "host"}, {"PANEL_COLUMNS": "32"}),
            "GPUs, peers": cases.Way({"device": "cuda"}, {"TRANSPORT": "peers"}, shapes="full"),
            "GPUs, a grid": cases.Way({"device": "cuda"}, {**nodes, "GRID": f"1x{comm.size}"}),
        }
    narrowed = dict.fromkeys(("holder_a", "holder_b"), ("array", "CuPy", "CuPy", "CuPy"))
    alone = {} if several else {"root": ("first",), "group": ("all",)}
    for case in cases.draw(seed, count, ways, **narrowed, **alone):
        cases.run(case, ways, comm if several else None)


for each in (
    integers_stay_there, integers_cross_the_link_in_their_own_types, results_of_16_bits_are_rounded_there, in_little_memory,
    transposes_arrive_as_they_lie, products_with_the_own_transpose_are_symmetric,
    results_are_written_to_arrays_there, products_like_the_one_before,
    a_lost_launch_is_found, small_products_are_left_to_the_cpu, other_libraries_arrays_stay_there,
):  # fmt: skip
    each()
products_at_random(*map(int, sys.argv[1:]))
if comm.rank == 0:
    print("all as it should be")
