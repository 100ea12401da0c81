# SPDX-License-Identifier: MIT
"""Matrices read from .npy files: all rows in any order and type; what is cut short or promises too much is refused."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

from hybrid.core.spans import Span
from hybrid.errors import HybridError, UsageError
from hybrid.host import npy_file
from hybrid.host.npy_file import NpyFile

MATRIX = np.arange(60, dtype=np.float64).reshape(12, 5) - 7


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(npy_file, "BYTES_AT_ONCE", 64)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("stored", ["float64", ">f4", "int16", "bool"])
@pytest.mark.parametrize("wanted", ["float64", "float32"])
def test_any_rows_of_any_file(tmp_path, order, stored, wanted):
    matrix = np.array(MATRIX, stored, order=order)
    np.save(tmp_path / "m.npy", matrix)
    file, into, seen = NpyFile(str(tmp_path / "m.npy")), np.zeros((7, 5), wanted), []
    file.read(Span(3, 10), into, seen.append)
    np.testing.assert_array_equal(into, matrix[3:10].astype(wanted))
    assert seen == sorted(seen)
    assert seen[-1] == 7


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_that_is_cut_short_meanwhile_is_named(tmp_path, order):
    path = tmp_path / "m.npy"
    np.save(path, np.array(MATRIX, order=order))
    file = NpyFile(str(path))
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(HybridError, match=re.escape(f"{path} has become shorter while it was read")):
        file.read(Span(0, 12), np.empty((12, 5)))


def test_a_file_that_is_replaced_meanwhile_is_the_old_one(tmp_path):
    np.save(tmp_path / "m.npy", MATRIX)
    file, into = NpyFile(str(tmp_path / "m.npy")), np.empty((12, 5))
    np.save(tmp_path / "new.npy", np.zeros((2, 2)))
    os.replace(tmp_path / "new.npy", tmp_path / "m.npy")
    file.read(Span(0, 12), into)
    np.testing.assert_array_equal(into, MATRIX)


@pytest.mark.parametrize("shape", [(10**12, 10**12), (10**6, 10**6), (13, 5), (-1, 5), (2**62, 4)])
def test_a_header_that_promises_more_than_the_file_holds(tmp_path, shape):
    with open(tmp_path / "m.npy", "wb") as file:
        np.lib.format.write_array_header_2_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
        file.write(MATRIX.tobytes())
    with pytest.raises(UsageError, match=r"promises more elements than the file holds|malformed header"):
        NpyFile(str(tmp_path / "m.npy"))


def test_what_follows_the_matrix_is_refused(tmp_path):
    with open(tmp_path / "m.npy", "wb") as file:
        np.save(file, MATRIX)
        file.write(b"more")
    with pytest.raises(UsageError, match=r"^is malformed, or holds several arrays: 4 bytes follow the one that its header"):
        NpyFile(str(tmp_path / "m.npy"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no .npy file"),
        (b"PK\x03\x04 and so on", "is no .npy file"),
        (b"\x93NUMPY", "^is cut short: it ends within its header$"),
        (b"\x93NUMPY\x09\x00\x10\x00{}", "^has a malformed header: NumPy reads no version of the format that it names$"),
        (b"\x93NUMPY\x01\x00\x05\x00{'a'", "^is cut short: it ends within its header$"),
        (b"\x93NUMPY\x01\x00\x05\x00{'a':", "^has a malformed header: type and shape cannot be read from it$"),
    ],
)
def test_what_is_no_such_file_is_said_in_plain_words(tmp_path, content, said):
    path = tmp_path / "m.npy"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said) as refusal:
        NpyFile(str(path))
    assert "\n" not in str(refusal.value)
    assert "allow_pickle" not in str(refusal.value)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        NpyFile(str(tmp_path / "none.npy"))
    np.save(path, np.array([[{}]]), allow_pickle=True)
    with pytest.raises(UsageError, match="holds Python objects"):
        NpyFile(str(path))
