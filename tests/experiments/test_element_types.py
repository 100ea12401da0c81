# SPDX-License-Identifier: MIT
"""scripts/bench_types.py: measured on the CPU, and what recorded lines say."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import element_types
from experiments.common.product_check import IntegerCheck, ProductCheck
from experiments.element_types import COMPLEX, INTEGERS, Results
from hybrid.errors import CheckFailed, DeviceUnavailable

QUICK = ["--device", "cpu", "--rounds", "1"]


def test_every_type_is_checked_timed_and_recorded(tmp_path, capsys):
    path = str(tmp_path / "lines.jsonl")
    assert element_types.main([*QUICK, "--sizes", "20x33x16", "--json", path]) == 0
    lines = Results.recorded(path)
    assert [(line["dtype"], line["elements"], line["place"]) for line in lines] == [
        *((dtype, "normal", "host") for dtype in COMPLEX),
        *((dtype, elements, "host") for dtype in INTEGERS for elements in ("small", "large")),
    ]
    table = capsys.readouterr().out
    assert element_types.main(["--from", path]) == 0
    assert capsys.readouterr().out == table
    assert "20×33×16" in table


def test_rates_count_the_four_real_products_of_a_complex_one():
    def spread(median):
        return {"median": median, "min": median / 2, "max": 2 * median}

    about = {"part": "types", "n": 1000, "l": 1000, "m": 1000, "device": "cuda", "gpu": "H200", "place": "gpu"}
    lines = [
        about | {"dtype": "complex64", "elements": "normal", "library": spread(0.02), "hybrid": spread(0.01)},
        about | {"dtype": "int8", "elements": "small", "place": "host", "library": spread(0.03), "hybrid": spread(0.002)},
    ]
    (table,) = Results(lines).blocks()
    assert table.rows == [
        ["complex64", "normal", "1000×1000×1000", "on the GPU", "20", "10", "2", "0.8"],
        ["int8", "small", "1000×1000×1000", "in host memory", "30", "2", "15", "1"],
    ]


@pytest.mark.parametrize("dtype", [*COMPLEX, *INTEGERS])
@pytest.mark.parametrize("elements", ["small", "large"])
def test_large_integers_fill_their_type_and_no_sum_exceeds_int64(dtype, elements):
    a, b = element_types._operands((10, 40, 9), dtype, elements)
    assert (a.dtype, b.dtype, a.shape, b.shape) == (dtype, dtype, (10, 40), (40, 9))
    if dtype in INTEGERS:
        exact = a.astype(object) @ b.astype(object)
        assert max(map(abs, exact.flat)) < 2**63
        assert (a.max() > 99) == (elements == "large")


@pytest.mark.parametrize("dtype", ["complex64", "int32"])
def test_a_wrong_product_is_refused(monkeypatch, capsys, dtype):
    original = element_types.hybrid.multiply

    def wrong(a, b, **more):
        c = original(a, b, **more)
        c[3, 4] += 1
        return c

    monkeypatch.setattr(element_types.hybrid, "multiply", wrong)
    assert element_types.main([*QUICK, "--sizes", "20", "--dtypes", dtype]) == 3
    assert f"hybrid is wrong for {dtype} 20×20 · 20×20" in capsys.readouterr().err


def test_the_checks_pass_right_products_and_find_one_wrong_element():
    random = np.random.default_rng()
    a, b = (random.standard_normal((200, 200)) + 1j * random.standard_normal((200, 200)) for _ in "ab")
    integers = [random.integers(-(2**30), 2**30, (200, 200)) for _ in "ab"]
    for check, c in ((ProductCheck(a, b), a @ b), (IntegerCheck(*integers), integers[0] @ integers[1])):
        check.refuse_wrong("it", c)
        c[random.integers(200), random.integers(200)] += 1j if c.dtype.kind == "c" else 1
        with pytest.raises(CheckFailed, match="it is wrong"):
            check.refuse_wrong("it", c)


@pytest.mark.gpu
def test_measured_on_a_gpu(tmp_path):
    path = str(tmp_path / "lines.jsonl")
    assert element_types.main(["--rounds", "1", "--sizes", "200x320x160", "--json", path]) == 0
    assert {line["place"] for line in Results.recorded(path)} == {"gpu", "host"}


def test_without_a_gpu_it_says_so(capsys, monkeypatch):
    def none():
        raise DeviceUnavailable("no GPU here")

    monkeypatch.setattr(element_types, "usable_gpus", none)
    assert element_types.main(["--sizes", "8"]) == 1
    assert "no GPU here" in capsys.readouterr().err
