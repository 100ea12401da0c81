# SPDX-License-Identifier: MIT
"""Matrices in files. The ending of a file's name says which format it has, and so which module reads and writes it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hybrid.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from hybrid.core.spans import Span
    from hybrid.host.matrix_output import MatrixOutput

_WITH_NAMES = {".h5": "hdf5", ".hdf5": "hdf5", ".zarr": "zarr"}  # formats of which a file holds several matrices
_OF_OTHERS = (".bin", ".csv", ".dat", ".json", ".mat", ".npz", ".parquet", ".tsv", ".txt", ".xlsx")  # which are not written
_NAMED = re.compile(r"(?P<file>.*(?P<ending>\.h5|\.hdf5|\.zarr)/?):(?P<inside>.*)", re.IGNORECASE | re.DOTALL)


class MatrixFile(Protocol):
    """A matrix of numbers in a file, of which every rank reads the rows it needs."""

    path: str
    shape: tuple[int, int]
    dtype: np.dtype
    at_once: bool  # `read` takes as long as the whole file takes, whatever the rows, and tells of its progress at the end only

    def load(self) -> None:
        """Read now what can only be read as a whole. UsageError or DoesNotFit, without the file's name."""

    def read(self, rows: Span, into: np.ndarray, progress: Callable[[int], None] = ...) -> None:
        """Write these rows to `into`, converted to its type; `progress` gets the number of rows done so far."""


class MatrixName(NamedTuple):
    """The name that a user gives a matrix, such as A.npy or A.h5:/group/name."""

    form: str  # npy, hdf5, zarr or mtx
    file: str
    inside: str = ""  # the matrix' name in the file, without the slashes around it


def matrix_name(text: str) -> MatrixName:
    """The parts of such a name.

    A file with the ending of no other format is a .npy file. Where a file of the whole name exists, that is meant.
    """
    ending = os.path.splitext(text.rstrip("/"))[1].lower()
    named = _NAMED.fullmatch(text)
    if named and not os.path.lexists(text):
        inside = named["inside"].strip("/")
        return MatrixName(_WITH_NAMES[named["ending"].lower()], named["file"], inside)
    return MatrixName(_WITH_NAMES.get(ending, "mtx" if ending == ".mtx" else "npy"), text)


def open_matrix(text: str, readers: int = 1) -> MatrixFile:
    """The matrix of that name. UsageError or DoesNotFit, without the name.

    `readers`: the processes of this machine that read it at the same time, with this one.
    """
    form, file, inside = matrix_name(text)
    if form == "hdf5":
        from hybrid.host.hdf5_file import open_dataset

        return open_dataset(file, inside)
    if form == "zarr":
        from hybrid.host.zarr_folder import open_array

        return open_array(file, inside)
    if form == "mtx":
        from hybrid.host.mtx_file import MtxFile

        return MtxFile(file, readers)
    from hybrid.host.npy_file import NpyFile

    return NpyFile(file)


def new_matrix(text: str, shape: tuple[int, int], dtype: np.dtype) -> MatrixOutput:
    """What writes a new matrix under that name. UsageError where its format cannot hold such elements."""
    form, file, inside = matrix_name(text)
    if form == "npy" and (ending := os.path.splitext(file)[1].lower()) in _OF_OTHERS:
        raise UsageError(f"{file}: matrices are written as .npy, .h5, .zarr or .mtx, and not as {ending}", code="file-kind")
    if dtype.kind == "V" and form != "npy":
        raise UsageError(
            f"{file} cannot hold {dtype}, which its format has not: write .npy, or with --dtype float32", code="dtype"
        )
    if form == "hdf5":
        from hybrid.host.hdf5_file import Hdf5Output

        return Hdf5Output(file, inside, shape, dtype)
    if form == "zarr":
        from hybrid.host.zarr_folder import ZarrOutput

        return ZarrOutput(file, inside, shape, dtype)
    if form == "mtx":
        from hybrid.host.mtx_file import MtxOutput

        return MtxOutput(file, shape, dtype)
    from hybrid.host.npy_file import NpyOutput

    return NpyOutput(file, shape, dtype)
