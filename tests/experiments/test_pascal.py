# SPDX-License-Identifier: MIT
"""What scripts/pascal.py says of question 4: (a) and (b) for every type, and (c) for sums whose order is known."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from support.recorded_lines import text_of

from experiments.lectures import pascal
from experiments.start import SCRIPTS
from hybrid.errors import UsageError
from hybrid.reporting import jsonl

SCRIPT = SCRIPTS / "pascal.py"
FIT = {"int32": 34, "int64": 67, "float32": 28, "float64": 57}
EXACT = {"int32": 22, "int64": 42, "float32": 17, "float64": 36}


def run(*arguments):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, timeout=100, env=clean, check=False
    )


def in_order(a, b):
    """Term after term, each product and each sum rounded: no fused multiply-add."""
    c = np.zeros_like(a)
    for k in range(len(a)):
        c = c + a[:, k : k + 1] * b[k : k + 1, :]
    return c


@pytest.mark.parametrize("dtype", pascal.LIMITS)
def test_a_the_largest_that_fits(dtype):
    size = FIT[dtype]
    assert pascal.largest_that_fits(dtype) == size
    whole = [[math.comb(row, column) for column in range(size + 1)] for row in range(size + 1)]
    fitting = np.array([row[:size] for row in whole[:size]], object)
    assert (pascal.triangles(size, dtype)[0].astype(object) == fitting).all()
    if dtype.startswith("int"):
        with pytest.raises(UsageError, match=f"size {size + 1} has entries beyond the largest {dtype}"):
            pascal.triangles(size + 1, dtype)
    else:
        rounded = pascal.triangles(size + 1, dtype)[0].tolist()
        assert [[int(number) for number in row] for row in rounded] != whole


@pytest.mark.parametrize("dtype", pascal.LIMITS)
def test_b_the_largest_exact_in_any_order(dtype):
    size = EXACT[dtype]
    assert pascal.largest_exact(dtype) == size
    for last, within in ((size, True), (size + 1, False)):
        absolute = np.array([[math.comb(i, j) for j in range(last)] for i in range(last)], object)
        assert (absolute.dot(absolute).max() <= pascal.LIMITS[dtype]) is within


@pytest.mark.parametrize(("dtype", "right"), [("float32", 20), ("float64", 39)])
def test_c_in_plain_order_without_fma(dtype, right):
    one = pascal.assess(dtype, in_order, "in order", quick=True)
    assert tuple(one[key] for key in ("fit", "exact", "right", "kernel")) == (FIT[dtype], EXACT[dtype], right, "in order")
    assert one["reasons"][2].startswith(f"N = {right + 1}: [")
    assert pascal.first_wrong(in_order(*pascal.triangles(right + 1, dtype))) is not None


@pytest.mark.parametrize("dtype", FIT)
def test_c_sizes_right_by_luck_are_told_apart(dtype):
    def lucky(a, b):
        return np.eye(len(a), dtype=a.dtype) + (len(a) in (5, 7))

    one = pascal.assess(dtype, lucky, "", quick=False)
    assert one["right"] == 4
    assert one["reasons"][2].startswith("N = 5: [0][0] is 2, not 1; its terms add up to 2^0.0; right again at 6, 8, 9, ")
    assert "again" not in pascal.assess(dtype, lucky, "", quick=True)["reasons"][2]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_wrapped_integers_are_the_identity_for_every_size(dtype):
    """So for integers a right product shows nothing, which the reason says."""
    size = FIT[dtype]
    assert size > EXACT[dtype]
    assert pascal.first_wrong(np.matmul(*pascal.triangles(size, dtype))) is None
    one = pascal.assess(dtype, np.matmul, "", quick=True)
    assert one["right"] == size
    assert "sums that wrap around would be the identity, too" in one["reasons"][2]


def test_the_lecture_s_triangles():
    left, right = pascal.triangles(8, "float64")
    assert left[7].tolist() == [1, 7, 21, 35, 35, 21, 7, 1]
    assert right[7].tolist() == [-1, 7, -21, 35, -35, 21, -7, 1]
    assert left[3].tolist() == [1, 3, 3, 1, 0, 0, 0, 0]
    assert pascal.first_wrong(left @ right) is None


def test_a_wrong_element_is_found():
    product = np.eye(4)
    product[2, 3] = -5
    assert pascal.as_text(pascal.first_wrong(product)) == "N = 4: [2][3] is -5, not 0"
    product[1, 1] = np.nan
    assert pascal.as_text(pascal.first_wrong(product)) == "N = 4: [1][1] is nan, not 1"


def test_numbers_a_type_holds():
    assert pascal.holds("float32", 2**24)
    assert not pascal.holds("float32", 2**24 + 1)
    assert pascal.holds("float32", 2**24 + 2)
    assert pascal.holds("int32", 2**31 - 1)
    assert not pascal.holds("int32", 2**31)
    assert pascal.holds("float64", 0)


def test_the_table_and_its_record(tmp_path):
    path = tmp_path / "pascal.jsonl"
    done = run("--device", "cpu", "--json", path)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()[1:5]]
    assert [(dtype, int(fit), int(exact)) for dtype, fit, exact, *_ in lines] == [(d, FIT[d], EXACT[d]) for d in pascal.LIMITS]
    records = {one["dtype"]: one for one in jsonl.read(str(path)) if one["part"] != "end"}
    for dtype, _, _, right, *kernel in lines:
        assert records[dtype]["fit"] == FIT[dtype]
        assert FIT[dtype] >= int(right) == records[dtype]["right"] >= EXACT[dtype]
        assert (kernel[0], int(right) == FIT[dtype]) == (("integers,", True) if dtype.startswith("int") else ("blas", False))
        assert all(
            f"{dtype} ({letter})  {reason}\n" in done.stdout
            for letter, reason in zip("abc", records[dtype]["reasons"], strict=True)
        )


@pytest.mark.parametrize("ending", [".svg", ".png"])
def test_the_picture(tmp_path, ending):
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"p{ending}"
    done = run("--quick", "--device", "cpu", "--picture", picture)
    assert done.returncode == 0, done.stderr
    if ending == ".png":
        assert picture.read_bytes().startswith(b"\x89PNG")
        return
    said = text_of(picture)
    assert all(words in said for words in ("34", "67", "17", "36", "int32", "float64", "(a) fit", "(c) right", "N, rows"))
    assert "core" in said  # of the machine


def test_one_size(tmp_path):
    done = run("--size", 17, "--device", "cpu", "--json", tmp_path / "one.jsonl")
    assert (done.returncode, done.stdout) == (0, "".join(f"{dtype}  N = 17: the identity\n" for dtype in FIT))
    assert json.loads((tmp_path / "one.jsonl").read_text().splitlines()[0])["wrong"] is None
    done = run("--size", 57, "--device", "cpu", "--dtype", "float64")
    assert done.returncode == 1
    assert done.stdout.startswith("float64  N = 57: [")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--size", "0"], "0 is not a whole number from 1 up"),
        (["--size", "35", "--dtype", "int32"], "entries beyond the largest int32"),
        (["--kernel", "blass"], "unknown kernel 'blass': did you mean 'blas'?"),
        (["--json", "none/x.jsonl"], "there is no folder"),
        (["--picture", "none/x.svg"], "there is no folder"),
        pytest.param(["--picture", "x.svg", "--size", "8"], "not with --size", marks=pytest.mark.needs("matplotlib")),
    ],
)
def test_wrong_usage_is_refused(arguments, said, tmp_path):
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_the_matrices_and_their_product_are_shown(capsys):
    assert pascal.main(["--show", "8", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "  1  7  21  35  35  21  7  1\n" in out
    assert "  -1   7  -21   35  -35  21  -7  1\n" in out
    assert out.endswith("  ·  ·  ·  ·  ·  ·  ·  1\n\nthe identity\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--show", "21"], "sizes to 20"),
        (["--show", "8", "--size", "8"], "measures nothing"),
    ],
)
def test_what_is_not_shown(arguments, said, capsys):
    assert pascal.main(arguments) == 2
    assert said in capsys.readouterr().err
