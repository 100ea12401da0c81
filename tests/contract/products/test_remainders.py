# SPDX-License-Identifier: MIT
"""Products from remainders have the same bits for any ranks, panels and transports, err by no more than the command says is
proved, and are chosen where docs/remainders.md says so."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from support.commands import module, start, successful
from support.selection import exhaustive

import hybrid
import hybrid.testing

FAST = {"device": "emulate", "precision": "fast"}
WAYS = {
    "as it comes": {},
    "through host memory": {"transport": "host"},
    "other nodes": {"ranks_per_node": 1},
    "panels": {"panel_columns": 128, "poison": True},
}


def operands(dtype, n=130, m=140):
    random, parts = np.random.default_rng(11), 1 + dtype.startswith("c")
    return tuple((random.standard_normal((*shape, parts)) @ [1, 1j][:parts]).astype(dtype) for shape in ((n, 100), (100, m)))


def blocks(comm, *matrices):
    return [hybrid.RowBlock(np.array_split(each, comm.size)[comm.rank].copy()) for each in matrices]


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("dtype", exhaustive(["complex128"], ["float64", "float32", "complex128", "complex64"]))
def test_the_bits_do_not_depend_on_panels(dtype):
    a, b = operands(dtype)
    alone = hybrid.multiply(a, b, **FAST)
    exact, columns = a.astype("G") @ b.astype("G"), 128 * np.dtype(dtype).itemsize // a.real.itemsize
    assert (abs(alone - exact) <= 16 * np.finfo(dtype).eps * (abs(a) @ abs(b))).all()
    np.testing.assert_array_equal(hybrid.multiply(a, b, conjugate_a=True, **FAST), hybrid.multiply(a.conj(), b, **FAST))
    for settings in (
        {"panel_columns": columns, "poison": True}, {"panel_rows": 128}, {"gpu_memory": "8M"}, {"threads": 1}, {"check": "host"},
    ):  # fmt: skip
        with hybrid.testing.pretend(**settings):
            np.testing.assert_array_equal(hybrid.multiply(a, b, **FAST), alone)
    blocks_too = hybrid.multiply(hybrid.RowBlock(a), hybrid.RowBlock(b), **FAST).array
    np.testing.assert_array_equal(blocks_too, alone)
    assert not np.array_equal(alone, hybrid.multiply(a, b, device="emulate", precision="native")), "or it is none from remainders"


@pytest.mark.exhaustive(above=2)
@pytest.mark.mpi(min_size=2)
@pytest.mark.needs("compiler")
@pytest.mark.parametrize("dtype", exhaustive(["float32"], ["float64", "float32"]))
def test_the_bits_do_not_depend_on_the_ranks(comm, dtype):
    a, b = operands(dtype)
    alone = hybrid.multiply(a, b, **FAST)
    for way, settings in WAYS.items():
        with hybrid.testing.pretend(**settings):
            c = hybrid.multiply(*((a, b) if comm.rank == 0 else (None, None)), comm=comm, **FAST)
            rows = hybrid.multiply(*blocks(comm, a, b), comm=comm, **FAST).array
        assert comm.rank or np.array_equal(c, alone), way
        np.testing.assert_array_equal(rows, np.array_split(alone, comm.size)[comm.rank], way)


@pytest.fixture(params=["alone", pytest.param("ranks", marks=[pytest.mark.mpi(min_size=2), pytest.mark.exhaustive(above=2)])])
def comm_or_self(request):
    from mpi4py import MPI

    return MPI.COMM_SELF if request.param == "alone" else request.getfixturevalue("comm")


@pytest.mark.needs("compiler")
def test_what_is_written_to_a_b_that_stays_is_noticed_by_all_ranks(comm_or_self):
    """An element, its last bit, its sign, a line, the order of lines; also with another product, or no remainders, in between."""
    comm = comm_or_self
    a, b = operands("float64", 130, 50)
    rows_a, rows_b = blocks(comm, a, b)
    other = blocks(comm, a[:, :70].copy(), b[:70].copy())
    part = len(np.array_split(b, comm.size)[0])  # rank 0's, which it writes

    def product(check=True):
        return hybrid.multiply(rows_a, rows_b, comm=comm, check=check, **FAST).array

    def change(number, b):
        row, column, value = ((1, 2, 5.0), (part - 1, -1, np.nextafter(b[part - 1, -1], 9)), (0, 0, -b[0, 0]))[number % 3]
        b[row, column] = value
        if number == 3:
            b[:part] = np.roll(b[:part], 1, axis=0)
        if number == 4:
            b[2] *= 2.0**24

    product()
    for number in range(6) if comm.size < 4 else (1, 3, 5):
        change(number, b)
        if comm.rank == 0:
            rows_b.array[...] = b[:part]
        at_once = product(check=number % 2 == 0)  # as wanted does not overwrite what was made of B yet
        wanted = np.array_split(hybrid.multiply(a, b, **FAST), comm.size)[comm.rank]
        np.testing.assert_array_equal(at_once, wanted)
        if number == 4:
            hybrid.multiply(*other, comm=comm, **FAST)
        elif number == 5:
            hybrid.multiply(rows_a, rows_b, comm=comm, device="emulate", precision="native")
        for poison in (number > 3, False):
            with hybrid.testing.pretend(poison=poison):
                np.testing.assert_array_equal(product(), wanted)


@pytest.mark.mpi(min_size=2)
@pytest.mark.needs("compiler")
def test_a_product_on_a_grid_in_between_leaves_nothing(comm, rng):
    """Its panels lie in the same memory."""
    first, second = (
        [rng.standard_normal(shape) for shape in shapes] for shapes in (((60, 140), (140, 50)), ((50, 120), (120, 40)))
    )
    with hybrid.testing.pretend(ranks_per_node=1, grid="rows"):
        before = hybrid.multiply(*blocks(comm, *first), comm=comm, **FAST).array
        with hybrid.testing.pretend(grid=f"1x{comm.size}"):
            hybrid.multiply(*blocks(comm, *second), comm=comm, **FAST)
        np.testing.assert_array_equal(hybrid.multiply(*blocks(comm, *first), comm=comm, **FAST).array, before)


# What is proved


def matrices(kind, rng):
    a, b = rng.standard_normal((30, 200)), rng.standard_normal((200, 40))
    if kind == "uniform":
        return rng.random((30, 200)), rng.random((200, 40))
    if kind == "bytes":
        return np.rint(40 * a), np.rint(40 * b)
    if kind == "integers":
        return np.rint(1e4 * a), np.rint(1e3 * b)
    if kind == "wide":
        return a * np.exp(rng.standard_normal(a.shape)), b * np.exp(rng.standard_normal(b.shape))
    if kind == "scaled":
        return a * 2.0 ** rng.integers(-60, 60, (30, 1)), b * 2.0 ** rng.integers(-60, 60, (1, 40))
    if kind == "far apart":
        return a * np.exp(9 * rng.standard_normal(a.shape)), b
    return a, b


# Which arithmetic elements get. Of the scaled ones only powers of two differ, which cost nothing.
KINDS = {
    "normal": r"14 moduli", "uniform": r"14 moduli", "bytes": r"exact|\d moduli, exact", "integers": r"\d moduli, exact",
    "wide": r"1[45] moduli", "scaled": r"14 moduli", "far apart": "native",
}  # fmt: skip
ACCURACY = [(kind, dtype) for kind in KINDS for dtype in ("float64", "float32")]


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(
    ("kind", "dtype"), exhaustive([("normal", "float64"), ("wide", "float32"), ("far apart", "float64")], ACCURACY)
)
def test_no_element_errs_by_more_than_is_proved(rng, tmp_path, kind, dtype):
    a, b = (each.astype(dtype) for each in matrices(kind, rng))
    for name, each in (("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", each)
    files = ["--a", "a.npy", "--b", "b.npy", "--out", "c.npy", "--json", "run.json"]
    successful(start(module("hybrid.matmul"), "--device", "emulate", "--precision", "fast", *files, cwd=tmp_path, limit=200))
    c, run = np.load(tmp_path / "c.npy"), json.loads((tmp_path / "run.json").read_text())
    exact, sizes = (np.longdouble(x) @ np.longdouble(y) for x, y in ((a, b), (np.abs(a), np.abs(b))))
    (name,) = run["arithmetic"]
    proved = run["certified"][name]
    if dtype == "float64":
        assert re.fullmatch(KINDS[kind], name)
    assert proved is None or (np.abs(c - exact) <= (proved or 1e-7 * (dtype == "float32")) * sizes).all()
    assert (proved is None) == (name == "native")
    assert not proved or proved <= 1000 * float((np.abs(c - exact) / sizes).max()), "so loose a bound proves little"


# What is chosen

AUTO = "--explain --gpus-per-node 8 --ranks"
CHOICES = [  # arguments, the most moduli (0: native), and the transport
    ("16000 16000 16000 {} 1 --capability 9.0", 15, "host"),
    ("16000 16000 16000 {} 1 --capability 9.0 --precision native", 0, "host"),
    ("8000 8000 8000 {} 1 --capability 9.0", 0, "host"),
    ("8000 8000 8000 {} 1 --capability 9.0 --precision fast", 15, "host"),
    ("8000 8000 8000 {} 1 --capability 9.0 --dtype float32", 8, "host"),
    ("2000 2000 2000 {} 1 --capability 8.9", 15, "host"),
    ("16000 16000 16000 {} 1 --capability 8.0", 0, "host"),
    ("16000 16000 16000 {} 1 --capability 9.0 --kernel cublas", 0, "host"),
    ("16000 16000 16000 {} 2 --capability 9.0 --precision native", 0, "peers"),
    ("16000 16000 16000 {} 2 --capability 9.0 --nodes 2 --precision native", 0, "nccl|host"),
    ("200 200 200 {} 2 --capability 9.0", 0, "host"),
]
EXPLAINING = """
import runpy, sys
for line in sys.stdin.read().splitlines():
    sys.argv = ["hybrid.matmul", *line.split()]
    try:
        runpy.run_module("hybrid.matmul", run_name="__main__")
    except SystemExit as ended:
        print("ended", ended.code or 0)
"""


def test_what_is_chosen_is_what_the_pages_say():
    asked = "\n".join(arguments.format(AUTO) for arguments, *_ in CHOICES)
    said = subprocess.run(
        [sys.executable, "-c", EXPLAINING], input=asked, capture_output=True, text=True, check=True, timeout=200
    ).stdout
    plans = said.split("ended 0\n")[:-1]
    assert len(plans) == len(CHOICES), said
    for plan, (arguments, moduli, transport) in zip(plans, CHOICES, strict=True):
        lines = {line.split()[0]: line for line in plan.splitlines() if line.split()[0] in ("precision", "transport")}
        found = re.search(r"modulo (\d+)", lines.get("precision", ""))
        assert (int(found[1]) if found else 0) == moduli, (arguments, lines)
        assert re.match(transport, lines["transport"].split()[1]), (arguments, lines)
