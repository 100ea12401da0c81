# SPDX-License-Identifier: MIT
"""Matrices in Matrix Market files: all formats and symmetries that hold real numbers, and what is malformed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hybrid.core.spans import Span
from hybrid.errors import DoesNotFit, UsageError
from hybrid.host import mtx_file
from hybrid.host.matrix_file import new_matrix, open_matrix

pytestmark = pytest.mark.needs("scipy")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.mtx"


def read(path, text, rows=None, readers=1):
    path.write_text(f"%%MatrixMarket matrix {text}")
    file = open_matrix(str(path), readers)
    rows = rows or Span(0, file.shape[0])
    into = np.full((len(rows), file.shape[1]), 99.0)
    file.read(rows, into)
    return into.tolist()


@pytest.mark.parametrize(
    ("text", "matrix"),
    [
        ("array real general\n% a comment\n2 3\n1\n2.5\n3e0\n-4\n5\n6\n", [[1, 3, 5], [2.5, -4, 6]]),
        ("array integer general\n1 2\n1\n2\n", [[1, 2]]),
        ("array real symmetric\n2 2\n1\n2\n3\n", [[1, 2], [2, 3]]),
        ("array real skew-symmetric\n2 2\n2\n", [[0, -2], [2, 0]]),
        ("coordinate real general\n3 2 2\n1 2 0.5\n3 1 -7\n", [[0, 0.5], [0, 0], [-7, 0]]),
        ("coordinate integer symmetric\n2 2 2\n1 1 4\n2 1 5\n", [[4, 5], [5, 0]]),
        ("coordinate pattern general\n2 2 1\n2 1\n", [[0, 0], [1, 0]]),
        ("coordinate real skew-symmetric\n2 2 1\n2 1 5\n", [[0, -5], [5, 0]]),
        ("coordinate real general\n2 1 0\n", [[0], [0]]),
        ("array real general\n0 3\n", []),
    ],
)
def test_every_format_of_real_numbers(path, text, matrix):
    assert read(path, text) == matrix
    assert open_matrix(str(path)).dtype == np.float64
    if len(matrix) > 1:
        assert read(path, text, Span(1, len(matrix))) == matrix[1:]


@pytest.mark.parametrize(
    ("text", "matrix"),
    [
        ("array complex general\n2 1\n1 -2\n0.5 0\n", [[1 - 2j], [0.5]]),
        ("array complex hermitian\n2 2\n1 0\n2 3\n4 0\n", [[1, 2 - 3j], [2 + 3j, 4]]),
        ("coordinate complex general\n2 2 1\n2 1 5 6\n", [[0, 0], [5 + 6j, 0]]),
        ("coordinate complex symmetric\n2 2 1\n2 1 5 6\n", [[0, 5 + 6j], [5 + 6j, 0]]),
    ],
)
def test_complex_numbers(path, text, matrix):
    path.write_text(f"%%MatrixMarket matrix {text}")
    file = open_matrix(str(path))
    assert (file.shape, file.dtype) == ((2, len(matrix[0])), np.complex128)
    into = np.full(file.shape, np.nan, complex)
    file.read(Span(0, 2), into)
    assert into.tolist() == matrix


def test_a_name_may_have_any_bytes(tmp_path):
    name = f"{tmp_path}/\udcff.mtx"
    assert read(Path(name), "array real general\n1 2\n1\n2\n") == [[1, 2]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("array complex general\n1 1\n1\n", "it is malformed: "),
        ("array real general\n2 2\n1\n2\n3\n", "it is cut short: 1 more line must follow$"),
        ("array real general\n2 2\n1\n2\n3\n4\n5\n", "it is malformed: .*Too many"),
        ("array real general\n2 2\n1\n2\nx\n4\n", "it is malformed: Line 5: "),
        ("array real general\n-2 2\n", "it is malformed: "),
        ("array real general\n", "it is cut short: it ends within its header$"),
        ("coordinate real general\n2 2 5\n", "its header promises 5 entries, of 2×2"),
        ("coordinate real general\n2 2 2\n1 1 1\n1 1 1\n", "it names the same element twice"),
        ("coordinate real general\n2 2 1\n3 1 1\n", "it is malformed: Line 3: "),
        ("nothing of the kind", "it is malformed: "),
    ],
)
def test_what_is_malformed_is_said(path, text, said):
    with pytest.raises(UsageError, match=f"cannot be read: {said}") as found:
        read(path, text)
    assert "\n" not in str(found.value)
    assert "Error" not in str(found.value)


def test_a_file_is_loaded_once_and_for_the_next_read_alone(path, monkeypatch):
    path.write_text("%%MatrixMarket matrix array real general\n1 2\n1\n2\n")
    file, read_before, original = open_matrix(str(path)), [], mtx_file.elements
    monkeypatch.setattr(mtx_file, "elements", lambda *given: read_before.append(1) or original(*given))
    file.load()
    into = np.empty((1, 2))
    for times in (1, 2):
        file.read(Span(0, 1), into)
        assert (into.tolist(), len(read_before)) == ([[1.0, 2.0]], times)


def test_what_is_malformed_is_found_when_it_is_loaded(path):
    path.write_text("%%MatrixMarket matrix array real general\n2 2\n1\n2\nx\n4\n")
    file = open_matrix(str(path))
    with pytest.raises(UsageError, match=r"^cannot be read: it is malformed: Line 5: "):
        file.load()


def test_memory_is_looked_at_again_when_it_is_loaded(path, monkeypatch):
    path.write_text("%%MatrixMarket matrix array real general\n100 100\n" + "1\n" * 10_000)
    file = open_matrix(str(path))
    monkeypatch.setattr(mtx_file, "available_host_bytes", lambda: 1000)
    with pytest.raises(DoesNotFit, match=r"^takes 78\.1 KiB to be read"):
        file.load()


def test_a_file_of_another_kind_is_called_one(path):
    path.write_text("1 2 3\n")
    with pytest.raises(UsageError, match=r"^cannot be read: it is no Matrix Market file: it does not begin with %%MatrixMarket$"):
        open_matrix(str(path))


def test_a_file_that_changes_meanwhile(path):
    path.write_text("%%MatrixMarket matrix array real general\n1 2\n1\n2\n")
    file = open_matrix(str(path))
    path.write_text("%%MatrixMarket matrix array real general\n2 1\n1\n2\n")
    with pytest.raises(UsageError, match=rf"{path} cannot be read: it has become another matrix while it was read: 2×1"):
        file.read(Span(0, 1), np.empty((1, 2)))
    path.unlink()
    with pytest.raises(UsageError, match=rf"{path} cannot be read: "):
        file.read(Span(0, 1), np.empty((1, 2)))


def test_memory_for_all_who_read_all_of_it_is_looked_at_before(path, monkeypatch):
    monkeypatch.setattr(mtx_file, "available_host_bytes", lambda: 100 << 10)
    text = "array real general\n100 100\n" + "1\n" * 10_000
    assert read(path, text) == [[1.0] * 100] * 100
    with pytest.raises(DoesNotFit, match=r"^takes 156\.2 KiB to be read, 100\.0 KiB are free: .* of which each of 2 ranks"):
        read(path, text, readers=2)
    with pytest.raises(DoesNotFit, match=r"^takes 7\.3 TiB to be read"):
        read(path, "array real general\n1000000 1000000\n1\n")


LARGE = -1.7976931348623157e308


@pytest.mark.parametrize(
    ("matrix", "field", "length"),
    [
        (np.array([[LARGE, 1.0], [-5e-324, np.nan]]), b"real", 25),
        (np.array([[complex(LARGE, LARGE), 1.0], [-5e-324, np.nan]]), b"complex", 50),
        (np.array([[-(2**63), 1], [0, 2**63 - 1]]), b"integer", 21),
        (np.array([[2**64 - 1, 1], [0, 7]], np.uint64), b"unsigned-integer", 21),
        (np.array([[True, False], [False, True]]), b"integer", 21),
    ],
)
def test_lines_are_all_of_one_length(path, matrix, field, length):
    """So every rank knows where its numbers go."""
    output = new_matrix(str(path), (2, 2), matrix.dtype)
    begun = output.begin(path)
    for row in (1, 0):
        output.write(path, begun, matrix, Span(row, row + 1), lambda: None)
    lines = path.read_bytes().splitlines(keepends=True)
    assert lines[:2] == [b"%%MatrixMarket matrix array " + field + b" general\n", b"2 2\n"]
    assert [len(line) for line in lines[2:]] == [length] * 4
    assert path.stat().st_size == output.size


def test_without_scipy_it_is_said_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(UsageError, match=r"^cannot be read: Matrix Market files are read by SciPy: pip install .*graphs"):
        read(path, "array real general\n1 1\n1\n")
