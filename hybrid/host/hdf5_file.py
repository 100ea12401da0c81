# SPDX-License-Identifier: MIT
"""Matrices in HDF5 files, by h5py: datasets are read by rectangles; a new file is made with room for the rows of a matrix.

HDF5 without MPI lets one process write a file. Here one process makes it, with a dataset that is stored as a whole, and finds
the place of that in the file; then every rank writes its rows there, as it does in a .npy file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.core.installation import install
from hybrid.errors import UsageError, one_line
from hybrid.host.chunked_matrix import ChunkedMatrix
from hybrid.host.files import code_of_reading, refuse_unwritable
from hybrid.host.matrix_output import RawRows, refuse_name
from hybrid.host.matrix_values import NUMBERS, listed, meant, only_one

_MOST_AROUND = 4096  # bytes that HDF5 takes around a matrix in a group of the file
_OF_A_GROUP = 1024


def open_dataset(path: str, inside: str) -> ChunkedMatrix:
    """The dataset `inside` the file; the file's only matrix where that is empty. UsageError, without the file's name."""
    h5py = _h5py("cannot be read")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError("is not a regular file", code="file-unreadable")
    file = _opened(h5py, path)
    try:
        dataset = _named(h5py, file, inside) if inside else _only(h5py, file)
        matrix = ChunkedMatrix(path, dataset, dataset.chunks)
        _refuse_lacking(h5py, dataset, path)
    except BaseException:
        file.close()
        raise
    return matrix


def _h5py(cannot: str) -> Any:
    """The module h5py. UsageError, beginning with `cannot`, where it is missing."""
    try:
        import h5py
    except ImportError as error:
        why = "without h5py" if isinstance(error, ModuleNotFoundError) else f"by h5py ({one_line(error)})"
        raise UsageError(f"{cannot} {why}: {install('hdf5')}", code="package-missing") from None
    return h5py


def _opened(h5py: Any, path: str) -> Any:
    """The file, opened for reading. UsageError, without the file's name, where that fails."""
    try:
        return h5py.File(path, "r", locking="best-effort")
    except BlockingIOError:
        raise UsageError(
            "is open for writing in another process, which has locked it: wait until that has closed it", code="file-locked"
        ) from None
    except OSError as error:
        if error.errno:
            raise UsageError(f"cannot be read: {os.strerror(error.errno)}", code=code_of_reading(error)) from None
        text = str(error)
        if "truncated file" in text:
            raise UsageError("is cut short: it begins as an HDF5 file that has more bytes", code="file-format") from None
        if "signature not found" in text:
            raise UsageError("is no HDF5 file: it does not begin like one", code="file-format") from None
        raise UsageError(f"is a malformed HDF5 file: {one_line(error)}", code="file-format") from None


def _named(h5py: Any, file: Any, name: str) -> Any:
    """The dataset of this name. UsageError, without the file's name, where there is none."""
    link = _link(file, name)
    try:
        found = file[name]
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        if isinstance(link, h5py.ExternalLink):
            raise UsageError(
                f"has a link /{name} to {link.path} in {link.filename}, which is not there", code="dataset-missing"
            ) from None
        if isinstance(link, h5py.SoftLink):
            raise UsageError(f"has a link /{name} to {link.path}, which is not there", code="dataset-missing") from None
        if link is not None:
            raise UsageError(f"has a malformed object /{name}: {one_line(error)}", code="file-format") from None
        raise UsageError(f"has no dataset /{name}: {meant(name, _matrices(h5py, file))}", code="dataset-missing") from None
    if not isinstance(found, h5py.Dataset):
        raise UsageError(
            f"has no dataset /{name}, which is a group there: {meant(name, _matrices(h5py, file))}", code="dataset-missing"
        )
    _dtype_of(found)
    return found


def _link(file: Any, name: str) -> Any:
    """The link of this name; None where there is none."""
    try:
        return file.get(name, getlink=True)
    except (KeyError, OSError, RuntimeError, ValueError):
        return None


def _only(h5py: Any, file: Any) -> Any:
    """The only matrix in the file. UsageError, without the file's name, where there is none, or a choice."""
    return file[only_one(_matrices(h5py, file))]


def _matrices(h5py: Any, file: Any) -> list[str]:
    """The names of all datasets that are matrices of numbers; links are not followed."""
    found: list[str] = []

    def visit(name: str, each: Any) -> None:
        if isinstance(each, h5py.Dataset) and each.shape is not None and len(each.shape) == 2 and _is_numeric(each):
            found.append(name)

    try:
        file.visititems(visit)
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"is a malformed HDF5 file: {one_line(error)}", code="file-format") from None
    return found


def _is_numeric(dataset: Any) -> bool:
    """Whether the elements of the dataset are numbers."""
    try:
        return _dtype_of(dataset).kind in NUMBERS
    except UsageError:
        return False


def _dtype_of(dataset: Any) -> np.dtype:
    """The type of the elements. UsageError for one that NumPy lacks."""
    try:
        return dataset.dtype
    except (TypeError, ValueError) as error:
        raise UsageError(f"holds a type that NumPy has not: {one_line(error)}", code="file-format") from None


def _refuse_lacking(h5py: Any, dataset: Any, path: str) -> None:
    """UsageError where elements could not be read: HDF5 would find that late, or read fill values in their place."""
    created = dataset.id.get_create_plist()
    for number in range(created.get_nfilters()):
        code, _, _, name = created.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            called = name.decode(errors="replace") or code
            raise UsageError(
                f"is stored with the filter {called}, which HDF5 lacks here: rewrite it with h5repack -f NONE", code="file-format"
            )
    folder = os.path.dirname(os.path.realpath(path))
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        if "%" not in source.file_name and source.file_name != ".":  # neither a pattern of names nor this file
            there = os.path.join(folder, source.file_name)
            if not os.path.exists(there) and not os.path.exists(source.file_name):
                raise UsageError(f"takes rows from {source.file_name}, which is not there", code="file-missing")


class Hdf5Output(RawRows):
    """A new HDF5 file with one dataset."""

    def __init__(self, path: str, inside: str, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.path, self._name, self._shape, self._dtype = path, inside or "C", shape, dtype
        around = _MOST_AROUND + _OF_A_GROUP * self._name.count("/")
        self.size = shape[0] * shape[1] * dtype.itemsize + around

    def refuse(self, size: int) -> None:
        h5py = _h5py(f"{self.path} cannot be written")
        refuse_name(self.path, self._name)
        refuse_unwritable(self.path, size)
        if os.path.exists(self.path) and os.path.getsize(self.path):
            self._refuse_losing(h5py)

    def _refuse_losing(self, h5py: Any) -> None:
        """UsageError where the file that would be replaced holds anything else, which would be lost."""
        try:
            with _opened(h5py, self.path) as file:
                held: list[str] = []
                file.visit_links(held.append)
        except UsageError as error:
            raise UsageError(f"{self.path} is there, and {error}: remove it, or name another file", code="file-exists") from None
        lost = [name for name in held if name != self._name and not self._name.startswith(f"{name}/")]
        if lost:
            raise UsageError(
                f"{self.path} is there and also holds {listed(lost)}, which a new file would lose: "
                "name another file; h5copy can put a dataset of it into this one",
                code="file-exists",
            )

    def begin(self, beside: Path) -> int:
        import h5py

        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        made.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        made.set_obj_track_times(False)  # the same matrix makes the same file
        with h5py.File(beside, "x", locking="best-effort") as file:
            *groups, name = self._name.split("/")
            group = file.require_group("/".join(groups)) if groups else file
            kind, space = h5py.h5t.py_create(self._dtype), h5py.h5s.create_simple(self._shape)
            offset = h5py.h5d.create(group.id, name.encode(), kind, space, made).get_offset()
        return offset or 0  # HDF5 gives no place to a matrix without elements
