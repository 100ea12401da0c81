# SPDX-License-Identifier: MIT
"""A fault of at least 20 of the product's own rounding errors is found wherever it is, of integers any fault, of copies a single
bit; the refusal has its code and names rank, rows and columns (docs/check.md, What is found)."""

import numpy as np
import pytest
from support import matmul
from support.checked import FORMS, WAYS, exact, named, operands, place_of, product, rounding, way
from support.commands import ROOT
from support.selection import exhaustive, pairs_first

import hybrid
from hybrid.errors import CheckFailed
from hybrid.testing import lacking, plant

# Sizes no two of which are alike, and no multiples of anything.
N, L, M = 61, 171, 149
DTYPES = ["float64", "float32"]
OF_COPIES = ["element", "lowest bit", "sign", "zero", "nan", "stale row", "rows swapped", "columns swapped", "shifted row",
             "shifted column", "nothing"]  # fmt: skip
OF_PRODUCTS = [*(how for how in OF_COPIES if how != "lowest bit"), "lost k"]


def refused(a, b, code="check-product", multiply=hybrid.multiply, **how):
    """What the refusal names. It has one line."""
    with np.errstate(all="ignore"), pytest.raises(CheckFailed) as refusal:
        multiply(a, b, **how)
    assert (refusal.value.code, refusal.value.exit_code) == (code, 3), refusal.value
    assert "\n" not in str(refusal.value)
    return named(refusal.value)


@pytest.mark.parametrize(
    ("way_", "how", "dtype", "kind", "form"),
    pairs_first(list(WAYS), OF_PRODUCTS, DTYPES, ["normal", "uniform", "integers", "large integers"], FORMS),
)
def test_a_wrong_multiplication(rng, way_, how, dtype, kind, form):
    a, b = operands(rng, kind, (N, L, M), dtype)
    with way(way_), plant("multiply", how=how, at=int(rng.integers(2)) if way_ == "panels" else 0) as planted:
        found = refused(a, b, multiply=lambda *given: product(None, form, *given))
    assert planted.done
    assert found.rank == 0
    assert found.rows[1] <= N


# In units of the largest rounding error of any element. A device's own sums are in float64, as some of its products.
SMALLEST = {("host", "f"): 20, ("host", "c"): 60, ("device", "f"): 60, ("device", "c"): 120}


@pytest.mark.parametrize(("way_", "dtype", "check"),
                         pairs_first([*WAYS, "emulated"], [*DTYPES, "complex128"], [True, "host"]))  # fmt: skip
def test_the_smallest_faults_wherever_they_are(rng, way_, dtype, check):
    """One element, anywhere in a product of normally distributed ones."""
    if way_ == "emulated" and (lacks := lacking("compiler")):
        pytest.skip(lacks)
    by = "host" if check == "host" or way_ == "in place" else "device"
    smallest = SMALLEST[by, np.dtype(dtype).kind]
    a, b = operands(rng, "normal", (N, L, M), dtype)
    right = exact(a, b)
    error = float(np.abs(a @ b - right).max())
    for _ in range(2):
        at = []

        def spoil(into, source, before, at=at):
            row, column = (int(rng.integers(size)) for size in into.shape)
            if dtype != "complex128" and way_ != "slabs":  # C is made of other matrices, or not all of it is there
                at.append(np.add(place_of(into, right), (row, column)))
            into[row, column] += error * rng.choice([-1, 1]) * rng.uniform(smallest, 1.5 * smallest)

        how = {"device": "emulate"} if way_ == "emulated" else {}
        with way("in place" if how else way_), plant("multiply", how=spoil) as planted:
            found = refused(a, b, check=check, **how)
        assert planted.done
        assert found.rank == 0
        assert all(found.holds(*place) for place in at), (found, at)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1, 8000, 1), (20, 20, 20)])
def test_the_smallest_faults_of_small_products(rng, sizes, dtype):
    """The rounding errors are those of plain sums, term after term. Of faults of 20 to 30 of them, about 1 in 200 is missed."""
    for _ in range(10):
        a, b = operands(rng, "normal", sizes, dtype)
        terms = a[:, :, None] * b
        error = float(np.abs(np.cumsum(terms, axis=1, dtype=dtype)[:, -1] - exact(a, b)).max())
        norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=0)
        error = max(error, float(np.finfo(dtype).eps / 3 * norms.mean()))  # a single element's may be small by chance

        def spoil(into, source, before, error=error):
            into[tuple(rng.integers(into.shape))] += error * rng.choice([-1, 1]) * rng.uniform(40, 60)

        with plant("multiply", how=spoil) as planted:
            refused(a, b)
        assert planted.done


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_faults_of_thin_products(rng, dtype):
    """They are multiplied and compared a few rows at a time. Rows of any sizes hide nothing of each other."""
    a, b = operands(rng, "normal", (60_000, 40, 3), dtype)
    a *= (2.0 ** rng.integers(-20, 20, (len(a), 1))).astype(dtype)
    for _ in range(3):
        with plant("multiply", how=lambda into, source, before: np.copyto(into[-1], into[-2])) as planted:
            refused(a, b, threads=2)
        assert planted.done


@pytest.mark.parametrize(
    ("way_", "what", "dtype", "check"), pairs_first([*WAYS, "emulated"], ["element", "column"], DTYPES, [True, "host"])
)
def test_scale_hides_nothing(rng, way_, what, dtype, check):
    """An element or a column that is zero, beside columns of any other sizes."""
    if way_ == "emulated" and (lacks := lacking("compiler")):
        pytest.skip(lacks)
    most = 9 if dtype == "float64" else 4
    for _ in range(4):
        a, b = rng.standard_normal((N, L)), rng.standard_normal((L, M)) * 10.0 ** rng.integers(-most, most + 1, M)
        a, b = a.astype(dtype), b.astype(dtype)

        def zero(into, source, before):
            row, column = (int(rng.integers(size)) for size in into.shape)
            into[row if what == "element" else slice(None), column] = 0

        how = {"device": "emulate"} if way_ == "emulated" else {}
        with way("in place" if how else way_), plant("multiply", how=zero) as planted:
            refused(a, b, check=check, **how)
        assert planted.done


@pytest.mark.parametrize(
    ("way_", "kind", "change"), pairs_first(list(WAYS), ["integers", "large integers"], [1.0, -1.0, 0.5, 2.0**-20, 2.0**-40])
)
def test_integers_that_are_off_by_however_little(rng, way_, kind, change):
    """Also where only their product is exact, and sums of the check are not."""
    a, b = operands(rng, kind, (N, 100, M))

    def spoil(into, source, before):
        into[tuple(rng.integers(into.shape))] += change

    if kind == "large integers" and 0 < change < 0.5:
        return  # which is rounded away
    with way(way_), plant("multiply", how=spoil) as planted:
        refused(a, b)
    assert planted.done


def rounded_to(bits):
    def rounded(matrix):
        unit = np.uint32(1 << (32 - bits))
        words = matrix.astype(np.float32).view(np.uint32)
        return ((words + unit // 2) & ~(unit - np.uint32(1))).view(np.float32).astype(matrix.dtype)

    return lambda rng, a, b, c: np.copyto(c, rounded(a) @ rounded(b))


def tile(size, change):
    def spoil(rng, a, b, c):
        row, column = (int(rng.integers(extent - size + 1)) for extent in c.shape)
        change(c[row : row + size, column : column + size])

    return spoil


GROSS = {
    "operands in bfloat16": rounded_to(16),
    "operands in TF32": rounded_to(19),
    "the last 64 terms left out": lambda rng, a, b, c: np.copyto(c, a[:, :-64] @ b[:-64]),
    "transposed": lambda rng, a, b, c: np.copyto(c, c.T.copy()),
    "of another scale": lambda rng, a, b, c: np.multiply(c, 1.01, out=c),
    "a tile of zeros": tile(8, lambda part: part.fill(0)),
    "a tile of NaN": tile(16, lambda part: part.fill(np.nan)),
    "an element of infinity": tile(1, lambda part: part.fill(np.inf)),
    "a tile of the wrong sign": tile(16, lambda part: np.negative(part, out=part)),
    "all rows by one further": lambda rng, a, b, c: np.copyto(c, np.roll(c, 1, axis=0)),
    "a stuck lane": lambda rng, a, b, c: c[:, 5::32].fill(1),
}


@pytest.mark.parametrize("draw", exhaustive(range(1), range(4)))
@pytest.mark.parametrize("name", GROSS)
def test_faults_of_programs_and_units(rng, name, draw):
    """What a wrong kernel, less precise units, or a defective one makes of a product of long sums."""
    way_, dtype = str(rng.choice(["in place", "staged"])), str(rng.choice(DTYPES))
    a, b = operands(rng, "normal", (150, 150, 150) if name == "transposed" else (70, 2000, 90), dtype)
    with way(way_), plant("multiply", how=lambda into, source, before: GROSS[name](rng, *source, into)) as planted:
        found = refused(a, b)
    assert planted.done
    assert found.rank == 0


@pytest.mark.parametrize("way_", ["in place", "staged"])
@pytest.mark.parametrize("kind", ["uniform", "integers"])
def test_two_columns_that_have_changed_places_are_found_every_time(rng, kind, way_):
    """Also such as are summed together, whatever the signs are that they are summed with."""

    def swap(into, source, before):
        into[:, [3, 17]] = into[:, [17, 3]]

    a, b = operands(rng, kind, (30, 40, 50))
    for _ in range(8):
        with way(way_), plant("multiply", how=swap):
            refused(a, b)


@pytest.mark.parametrize("value", exhaustive([1e100, -1e155, np.inf], [1e100, 1e153, -1e155, 1e200, -1.7e308, np.inf, np.nan]))
@pytest.mark.parametrize("way_", WAYS)
def test_elements_whose_square_overflows(rng, way_, value):
    """A flipped bit of an exponent makes such: a check that takes the size of C's own elements for granted would accept it."""
    a, b = operands(rng, "normal", (N, L, M))
    with way(way_), plant("multiply", how=lambda into, source, before: into.__setitem__((3, 4), value)):
        assert refused(a, b).holds(3, 4)


def test_such_an_element_is_found_without_a_c_compiler_too(tmp_path):
    (tmp_path / "faults.py").write_text("def spoil(into, source, before):\n    into[3, 4] = 1e117\n")
    bare = {"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    planted = {"planted": ["multiply how=faults.py:spoil"], "anew": True, "cwd": tmp_path}
    np.save(tmp_path / "tiny.npy", 1e-25 * np.random.default_rng(1).standard_normal((50, 50)))
    done = matmul.run("--a", "tiny.npy", "--b", "tiny.npy", **planted, **bare)
    assert (done.returncode, "wrong: row 3 of C, columns 4:" in done.stdout) == (3, True), done.stderr


@pytest.mark.parametrize(
    ("kind", "way_", "check"),
    pairs_first(
        ["NaN in A", "infinity in A", "NaN in B", "infinity in B", "a huge element"], ["in place", "staged"], [True, "host"]
    ),
)
def test_faults_beside_what_cannot_be_judged(rng, kind, way_, check):
    """A row of C whose row of A holds NaN, and a column whose column of B does, cannot be judged. All others are."""
    a, b = operands(rng, kind, (N, L, M))
    with np.errstate(all="ignore"):
        finite = np.argwhere(np.isfinite(a @ b) & (np.abs(a @ b) < 1e20))
    for row, column in finite[rng.integers(len(finite), size=3)].tolist():

        def spoil(into, source, before, at=(row, column)):
            into[at] += 1e-6 * (1 + abs(into[at]))

        with way(way_), plant("multiply", how=spoil):
            found = refused(a, b, check=check)
        assert found.holds(row, column), (found, row, column)


@pytest.mark.parametrize(("operand", "way_", "how", "dtype", "at"),
                         pairs_first(["A", "B", "C"], [*WAYS][1:], OF_COPIES, DTYPES, [0, 1]))  # fmt: skip
def test_a_wrong_copy(rng, operand, way_, how, dtype, at):
    """Of a single bit, of A or B on the way to a device, of C on the way back. The copy is named."""
    a, b = operands(rng, "normal", (N, L, M), dtype)
    c, copies = np.zeros((N, M), dtype), []
    matrix, kind = {"A": a, "B": b, "C": c}[operand], "copy out" if operand == "C" else "copy in"

    def copied(into, source, before):
        copy = into if operand == "C" else source
        copies.append(place_in(copy, matrix) if np.shares_memory(copy, matrix) else None)

    with way(way_):
        with plant(kind, times=None, how=copied):
            hybrid.multiply(a, b, out=c)
        ours = [number for number, copy in enumerate(copies) if copy]
        number = ours[min(at, len(ours) - 1)]
        c[...] = 0
        with plant(kind, at=number, how=how) as planted:
            found = refused(a, b, "check-copy", out=c)
    assert planted.done
    assert (found.rank, found.matrix) == (0, operand)
    rows, columns = copies[number]
    assert all(max(one[0], other[0]) < min(one[1], other[1]) for one, other in ((rows, found.rows), (columns, found.columns)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sample_of_a_large_copy_tells_what_is_missing_or_misplaced(rng, dtype):
    """A single bit is found where all is compared."""
    n = 1200  # more than 16 MiB
    a, b = operands(rng, "normal", (n, n, n), dtype)
    faults = [(True, how) for how in ("nothing", "stale row", "rows swapped", "shifted row")] + [("full", "lowest bit")]
    for check, how in faults:
        for kind in ("copy in", "copy out"):
            with way("staged"), plant(kind, how=how) as planted:
                refused(a, b, "check-copy", check=check)
            assert planted.done, (kind, how)


def place_in(part, whole):
    """The rows and the columns of a contiguous matrix that this part of it has."""
    row, column = divmod((part.ctypes.data - whole.ctypes.data) // whole.itemsize, whole.shape[1])
    return (row, row + len(part)), (column, column + part.shape[1])


def test_rows_of_small_integers_that_were_swapped_at_any_distance(rng):
    """Their bits end in 50 zeros, which a product of a row's checksum with a row's weight would keep."""
    a, b = np.zeros((4200, 9)), rng.standard_normal((9, 8))
    a[0, 0] = a[2048, 3] = a[4096, 1] = a[4096, 2] = 1
    for rows in ([0, 4096], [2048, 4096], [0, 1], [1, 2048]):

        def swap(into, source, before, rows=rows):
            if len(into) == len(a):
                into[rows] = into[rows[::-1]]

        with way("staged"), plant("copy in", times=None, how=swap) as planted:
            assert refused(a, b, "check-copy").matrix == "A"
        assert planted.done


def test_a_tile_that_is_also_written_elsewhere(rng):
    """Where the first one was, after this had been summed."""
    a, b = operands(rng, "normal", (N, L, M))
    c = np.zeros((N, M))

    def twice(into, source, before):
        c[: len(into), : into.shape[1]] = into

    with way("panels"), plant("copy out", at=4, how=twice):
        found = refused(a, b, "check-copy", out=c)
    assert (found.matrix, found.rows[0], found.columns[0]) == ("C", 0, 0)


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("way_", ["in place", "staged"])
def test_operands_that_somebody_writes_meanwhile(rng, operand, way_):
    a, b = operands(rng, "normal", (N, L, M))

    def write(into, source, before):
        (a, b)[operand][7, 7] += 1

    kind, at, code = ("multiply", 0, "check-product") if way_ == "in place" else ("copy in", operand, "check-copy")
    with way(way_), plant(kind, at=at, how=write):
        assert refused(a, b, code).rank == 0


def test_a_product_more_accurate_than_a_cpus(rng):
    """As those from remainders are: a tile that is off by 20 rounding errors of NumPy's product is found."""
    a, b = operands(rng, "normal", (150, 4000, 160), "float32")
    noise = 20 * rounding(a, b) * rng.uniform(0.5, 1.0, (50, 50)) * rng.choice([-1, 1], (50, 50))

    def spoil(into, source, before):
        into[...] = source[0].astype(np.float64) @ source[1]
        into[60:110, 100:150] += noise

    for _ in range(2):
        with way("staged"), plant("multiply", how=spoil):
            found = refused(a, b)
        assert 60 <= found.rows[0] < 110
