# SPDX-License-Identifier: MIT
"""Products from remainders on the emulated GPU, without MPI: the kernels' bits beside the model's, and what is native instead."""

from __future__ import annotations

import json
import math
import re
from functools import cache

import numpy as np
import pytest
from support.commands import module, start, successful
from support.modular import computed, product
from support.selection import exhaustive

import hybrid
from experiments.accuracy import model
from experiments.accuracy.errors import UNITS, Reference
from experiments.accuracy.kinds import KINDS, matrices
from hybrid.errors import UsageError
from hybrid.plan.arithmetic import BYTES, MODULI, NATIVE, RECONSTRUCTION, Arithmetic

pytestmark = pytest.mark.needs("compiler")


def assert_has_the_model_s_bits(c, a, b, arithmetic):
    """All of them where the last step is exact; else each element is one to which the integer is rounded, but for the last
    step's own error: nearly always the nearest."""
    with np.errstate(under="ignore"):
        rounded = model.from_remainders(a, b, arithmetic)
    if arithmetic.moduli <= 8:
        np.testing.assert_array_equal(c, rounded)
        return
    integers, back = model.integer_product(a, b, arithmetic)
    room = math.prod(MODULI[: arithmetic.moduli])
    error, large = int(room * RECONSTRUCTION), np.abs(integers) > room >> 12
    assert not large.any() or (c == rounded)[large].mean() > 0.98
    lowest, highest = (np.ldexp((integers + shift).astype(np.float64), back) for shift in (-error, error))
    assert ((lowest <= c) & (c <= highest)).all()


SHAPES = [(40, 70, 50), (130, 257, 129), (1, 600, 1), (3, 1, 5), (257, 128, 300)]


@pytest.mark.parametrize(("dtype", "moduli"), [("float64", 15), ("float64", 14), ("float32", 7)])
@pytest.mark.parametrize(("n", "l", "m"), exhaustive([SHAPES[0], SHAPES[2]], SHAPES))
def test_the_kernels_have_the_model_s_bits(n, l, m, dtype, moduli, rng):
    a, b = matrices("uniform", dtype, n, l, m, rng)
    c, done = product(a, -b, fast=moduli == 14)
    assert done == {Arithmetic(moduli): n * m}
    assert_has_the_model_s_bits(c, a, -b, Arithmetic(moduli))


def test_eight_moduli_have_the_model_s_bits(rng):
    a, b = matrices("φ = 1", "float32", 60, 70, 50, rng)
    c, done = product(a, b)
    assert done == {Arithmetic(8): 3000}
    assert_has_the_model_s_bits(c, a, b, Arithmetic(8))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_guard_chooses_as_the_model_does(kind, dtype, rng):
    a, b = matrices(kind, dtype, 30, 200, 40, rng)
    arithmetic, error = model.chosen(a, b, fast=False)
    c, done = computed(a, b)
    assert done == {arithmetic: (1200, error and pytest.approx(error, rel=1e-3))}
    if arithmetic.moduli:
        assert_has_the_model_s_bits(c, a, b, arithmetic)


@pytest.mark.parametrize("inner", [17 * 128, 64 * 128 - 100, 64 * 128])
def test_the_guard_looks_at_the_units_that_the_model_looks_at(inner, rng):
    a, b = (x.astype(np.float32) for x in matrices("normal", "float32", 8, inner, 9, rng))
    found = model.least_ratio(model.Lines(a), model.Lines(np.ascontiguousarray(b.T)))
    looked_at = {}

    def noted(*arguments, **more):
        looked_at["ratio"] = arguments[4]()
        return NATIVE, None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybrid.devices.modular.choose", noted)
        product(a, b)
    assert looked_at["ratio"] == pytest.approx(found, rel=0.01)


# --- what is proved


# Times the largest error of a product, by the length of sums: worst cases add up all roundings, and of 2,304 terms the guard
# looks at some. Up to 32 and, of normal numbers, 480 were seen.
LOOSE = {200: 64, 2304: 1000}


def assert_errs_as_proved(c, a, b, done, loose=None):
    """Of products that have no native tile."""
    _, largest = Reference(a, b).rms_and_max(c)
    proved = max(error for _, error in done.values()) / UNITS[a.dtype.name]
    assert largest <= proved
    assert loose is None or not proved or proved <= loose * largest


OF_PROOFS = [(kind, dtype, fast) for kind in KINDS for dtype, fast in (("float64", False), ("float64", True), ("float32", False))]


@pytest.mark.parametrize(("kind", "dtype", "fast"), exhaustive([each for each in OF_PROOFS if "φ" in each[0]], OF_PROOFS))
def test_no_element_errs_by_more_than_is_proved(kind, dtype, fast, rng):
    a, b = matrices(kind, dtype, 30, 200, 40, rng)
    c, done = computed(a, b, fast=fast)
    if NATIVE in done:
        assert done == {NATIVE: (1200, None)}
    else:
        assert_errs_as_proved(c, a, b, done, None if kind == "integers" else LOOSE[200])  # these lose little or nothing


@pytest.mark.parametrize(("dtype", "fast"), [("float64", False), ("float64", True), ("float32", False)])
def test_what_is_proved_holds_where_the_guard_looks_at_some_units(dtype, fast, rng):
    a, b = matrices("normal", dtype, 8, 2304, 9, rng)
    c, done = computed(a, b, fast=fast)
    assert_errs_as_proved(c, a, b, done, LOOSE[2304])


@pytest.mark.parametrize("factors", [(2.0**-140, 1.0), (2.0**-70, 2.0**-70), (2.0**55, 2.0**55), (2.0**-145, 2.0**100)])
def test_what_is_proved_holds_for_subnormal_elements_and_large_ones(factors, rng):
    a, b = matrices("φ = 0.5", "float64", 20, 90, 30, rng)
    a, b = np.float32(factors[0] * a), np.float32(factors[1] * b)
    a[3], b[:, 4] = 0, 0
    c, done = computed(a, b)
    assert NATIVE not in done
    assert_errs_as_proved(c, a, b, done)


def test_nothing_is_proved_where_float32_may_overflow(rng):
    a, b = (np.float32(2.0**64) * x for x in matrices("normal", "float32", 20, 90, 30, rng))
    c, done = computed(a, b)
    assert done == {Arithmetic(7): (600, None)}
    assert np.isinf(c).any()


@pytest.mark.parametrize("way", [{"ranks": 2}, {"panel_rows": 128}, {"panel_columns": 128}])
def test_the_worst_tile_counts(way, rng):
    a, b = matrices("uniform", "float64", 256, 128, 256, rng)
    a[128:], b[:, 128:] = a[128:] ** 3, b[:, 128:] ** 3  # whose norms are large beside their sums
    best, worst = (computed(a[part], b[:, part])[1][Arithmetic(15)][1] for part in (slice(128), slice(128, 256)))
    c, done = computed(a, b, **way)
    assert best < worst
    assert done == {Arithmetic(15): (c.size, worst)}
    assert_errs_as_proved(c, a, b, done)


def test_exact_sums_of_bytes_are_rounded_once_to_float32(rng):
    a, b = (rng.integers(100, 128, shape).astype(np.float32) for shape in ((9, 1300), (1300, 8)))
    c, done = computed(a, b)
    assert done == {BYTES: (72, 2.0**-24)}
    assert_errs_as_proved(c, a, b, done)
    assert computed(a.astype(float), b.astype(float))[1] == {BYTES: (72, 0.0)}


# --- whatever the plan


OUT_OF_CORE = 2_000_000  # bytes: B stays in float64, A in float32
WAYS = {
    "rows": {"panel_rows": 128},
    "columns": {"panel_columns": 128},
    "wide columns": {"panel_rows": 128, "panel_columns": 256},
    "high rows": {"panel_rows": 256, "panel_columns": 128},
    "ranks": {"ranks": 2},
    "ranks and panels": {"ranks": 3, "panel_rows": 128, "panel_columns": 128},
    "out of core": {"panel_rows": 128, "panel_columns": 128, "device_memory": OUT_OF_CORE},
}
CHOSEN = [("rows", "float32"), ("ranks and panels", "float64"), ("out of core", "float64")]


@pytest.fixture(scope="module")
def in_one_tile():
    """For each type: A, B, and C without panels."""

    @cache
    def made(dtype):
        a, b = matrices("φ = 0.5", dtype, 260, 60, 270, np.random.default_rng(7))
        a[5], b[:, 7] = 0, 0
        return a, b, *product(a, b)

    return made


@pytest.mark.parametrize(("way", "dtype"), exhaustive(CHOSEN, [(way, dtype) for way in WAYS for dtype in ("float64", "float32")]))
def test_panels_ranks_and_little_memory_change_no_bit(way, dtype, in_one_tile):
    a, b, whole, arithmetics = in_one_tile(dtype)
    (arithmetic,) = arithmetics
    assert_has_the_model_s_bits(whole, a, b, arithmetic)
    c, done = product(a, b, **WAYS[way])
    assert done == {arithmetic: c.size}
    np.testing.assert_array_equal(c, whole)


# --- what is native


def natively(a, b):
    """By the same kernel without remainders, in one tile."""
    return product(a, b, fast=None)[0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_native(value, dtype, rng):
    a, b = matrices("normal", dtype, 40, 60, 50, rng)
    (a if value != np.inf else b)[13, 17] = value
    c, done = product(a, b)
    assert done == {NATIVE: c.size}
    np.testing.assert_array_equal(c, natively(a, b))
    assert not np.isfinite(c).all()


def test_only_the_tiles_that_need_it_are_native(rng):
    a, b = matrices("normal", "float64", 256, 60, 256, rng)
    a[200, 30] = np.nan
    c, done = product(a, b, panel_rows=128, panel_columns=128)
    assert done == {NATIVE: 128 * 256, Arithmetic(15): 128 * 256}
    assert np.isnan(c[200]).all()
    assert np.isfinite(np.delete(c, 200, axis=0)).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_lines_of_zeros_give_zeros(dtype, rng):
    a, b = matrices("normal", dtype, 40, 60, 50, rng)
    a[3], b[:, 4] = 0, 0
    c, done = product(a, b)
    assert NATIVE not in done
    assert not c[3].any()
    assert not c[:, 4].any()
    np.testing.assert_array_equal(c == 0, natively(a, b) == 0)
    zeros, done = product(np.zeros_like(a), b)
    assert not zeros.any()
    assert NATIVE not in done


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_cancels_is_exactly_zero(dtype, fast, rng):
    half_a, half_b = matrices("normal", dtype, 30, 50, 40, rng)
    c, done = product(np.concatenate([half_a, half_a], axis=1), np.concatenate([half_b, -half_b]), fast=fast)
    assert all(arithmetic.scaled for arithmetic in done)
    assert not c.any()


# The factors bring magnitudes out of float32's range, which must not matter to the guard.
FACTORS = {"float64": [1, 2.0**-100, 2.0**-160, 2.0**160, 2.0**-400, 2.0**400], "float32": [1, 2.0**-128, 2.0**100]}


@pytest.mark.parametrize(("dtype", "factor"), [(dtype, factor) for dtype, factors in FACTORS.items() for factor in factors])
def test_large_elements_that_meet_small_ones_are_native(dtype, factor, rng):
    a, b = matrices("halves", dtype, 40, 200, 50, rng)
    _, done = product((a * factor).astype(dtype), b)
    assert done == {NATIVE: 2000}


@pytest.mark.parametrize("factor", [2.0**-160, 2.0**-400, 2.0**160])
def test_powers_of_two_change_the_exponents_alone(factor, rng):
    a, b = matrices("normal", "float64", 40, 60, 50, rng)
    c, done = product(a, b)
    scaled, done_scaled = product(a * factor, b)
    assert done == done_scaled == {Arithmetic(15): c.size}
    np.testing.assert_array_equal(scaled, c * factor)


def test_subnormal_numbers_of_float32_are_multiplied(rng):
    a, b = matrices("normal", "float32", 40, 60, 50, rng)
    tiny = (a * 2.0**-140).astype(np.float32)
    assert (np.abs(tiny) < np.finfo(np.float32).tiny).all()
    large = (b * 2.0**60).astype(np.float32)
    c, done = product(tiny, large)
    (arithmetic,) = done
    assert arithmetic.moduli in (7, 8)
    assert_has_the_model_s_bits(c, tiny, large, arithmetic)
    exact = tiny.astype(np.float64) @ large.astype(np.float64)
    assert (np.abs(c - exact) <= 2.0**-24 * 2 * (np.abs(tiny).astype(np.float64) @ np.abs(large))).all()


def test_numbers_that_float64_squares_lose_are_native(rng):
    a, b = matrices("subnormals", "float64", 20, 60, 20, rng)
    assert product(a, b)[1] == {NATIVE: 400}


# --- integers


@pytest.mark.parametrize(
    ("dtype", "inner", "of_a", "of_b", "arithmetic"),
    [
        ("float64", 129, 127, 127, BYTES),
        ("float32", 129, 127, 127, BYTES),
        ("float64", 129, 128, 1, Arithmetic(3, scaled=False)),
        ("float64", 64, 1000, 1000, Arithmetic(5, scaled=False)),
        ("float64", 127, 2**23, 2**23, Arithmetic(7, scaled=False)),
        ("float64", 127, 2**46 - 1, 1, Arithmetic(7, scaled=False)),
        ("float32", 15, 1000, 1000, Arithmetic(5, scaled=False)),
        ("float32", 125, 2**16, 1, Arithmetic(3, scaled=False)),
        ("float32", 127, 2**16, 1, Arithmetic(5, scaled=False)),
    ],
)
def test_integers_up_to_the_bounds_are_exact(dtype, inner, of_a, of_b, arithmetic, rng):
    a, b = (rng.integers(-most, most + 1, shape) for most, shape in ((of_a, (20, inner)), (of_b, (inner, 30))))
    a[0], a[1], b[:, 0], b[:, 1] = of_a, -of_a, of_b, -of_b  # as much as the bound allows, of both signs
    exact = a @ b
    c, done = product(a.astype(dtype), b.astype(dtype))
    ((found, elements),) = done.items()
    assert elements == c.size
    assert not found.scaled
    assert found == arithmetic
    np.testing.assert_array_equal(c.astype(np.int64), exact)


def test_integers_beyond_the_bound_take_the_scaled_road(rng):
    a, b = (rng.integers(-(2**24), 2**24, shape).astype(np.float64) for shape in ((20, 128), (128, 30)))
    a[0, 0] = b[0, 0] = 2**24
    _, done = product(a, b)
    assert done == {Arithmetic(15): 600}


# --- as users ask for it


@pytest.mark.parametrize("ranks", [0, pytest.param(2, marks=pytest.mark.launcher)])
def test_the_command_tells_the_arithmetic(ranks, tmp_path, rng):
    a, b = matrices("uniform", "float64", 60, 70, 50, rng)
    a[30:] **= 3  # rank 1 of 2 can prove less
    c, wanted = computed(a, b, fast=True, ranks=ranks or 1)
    for name, matrix in (("A", a), ("B", b)):
        np.save(tmp_path / f"{name}.npy", matrix)
    words = ("--a", "A.npy", "--b", "B.npy", "--out", "C.npy", "--json", "lines.jsonl", "--device", "emulate")
    done = successful(start(module("hybrid.matmul"), *words, "--precision", "fast", ranks=ranks, cwd=tmp_path))
    np.testing.assert_array_equal(np.load(tmp_path / "C.npy"), c)
    said = re.search(r"^arithmetic: 100 % 14 moduli \(proved: error ≤ (.+)·\|A\|\|B\|\)$", done.stdout, re.MULTILINE)
    assert "precision from remainders where as accurate (asked for)" in done.stdout
    record = json.loads((tmp_path / "lines.jsonl").read_text())
    (error,) = record["certified"].values()
    assert wanted == {Arithmetic(14): (record["arithmetic"]["14 moduli"], error)}
    assert error <= float(said[1]) <= 1.1 * error
    assert_errs_as_proved(c, a, b, wanted)
    native = successful(start(module("hybrid.matmul"), *words, cwd=tmp_path))
    assert "arithmetic:" not in native.stdout
    assert "precision native (faster on an emulated GPU)" in native.stdout


def test_a_kernel_of_its_own_is_refused_in_one_line():
    done = start(module("hybrid.matmul"), 6, 7, 5, "--device", "emulate", "--precision", "fast", "--kernel", "tiled")
    assert done.returncode == UsageError.exit_code
    said = "precision fast has kernels of its own: it goes with kernel auto, not with tiled"
    assert done.stderr.splitlines() == [f"hybrid.matmul: {said}"]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_multiply_takes_a_precision(dtype, rng):
    a, b = matrices("normal", dtype, 40, 60, 50, rng)
    c = hybrid.multiply(a, b, device="emulate", precision="fast")
    assert_has_the_model_s_bits(c, a, b, Arithmetic(14 if dtype == "float64" else 7))
    native, by_default = (hybrid.multiply(a, b, device="emulate", precision=precision) for precision in ("native", "auto"))
    np.testing.assert_array_equal(native, by_default)
