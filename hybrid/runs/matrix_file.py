# SPDX-License-Identifier: MIT
"""Matrices in files: .npy, HDF5, Zarr, Matrix Market and PLINK's genotypes. The file name's extension gives the format.

`open_matrix` returns a MatrixFile, from which every rank reads the part it needs; `new_matrix` a MatrixOutput: one process begins
the file under a temporary name, then several write parts of it. Files are never mapped, so that a truncated file or a full disk
is an error and not a SIGBUS. Pickles are not read.
"""

from __future__ import annotations

import io
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybrid.core.installation import Remark, install
from hybrid.core.problem import Span, pieces
from hybrid.core.settings import nearest
from hybrid.core.text import counted, readable, tell_nobody
from hybrid.errors import DoesNotFit, HybridError, UsageError, one_line
from hybrid.host.files import code_of_reading, read_whole, refuse_unwritable, write_whole
from hybrid.host.memory import available_host_bytes
from hybrid.host.threads import on_threads, rows_of_about

BYTES_AT_ONCE = 32 << 20  # per read or write between two reports of progress
_NUMBERS = "biufc"  # the kinds of NumPy's types that are numbers
_MOST_NAMES = 8  # of matrices in a file that an error lists

_WITH_NAMES = {".h5": "hdf5", ".hdf5": "hdf5", ".zarr": "zarr", ".bed": "bed"}  # formats whose files hold several matrices
_NEVER_WRITTEN = (".bed", ".bin", ".csv", ".dat", ".json", ".mat", ".npz", ".parquet", ".tsv", ".txt", ".xlsx")
_NAMED = re.compile(r"(?P<file>.*(?P<ending>\.h5|\.hdf5|\.zarr|\.bed)/?):(?P<inside>.*)", re.IGNORECASE | re.DOTALL)


class MatrixName(NamedTuple):
    """The name that a user gives a matrix, such as A.npy or A.h5:/group/name."""

    form: str  # npy, hdf5, zarr, bed or mtx
    file: str
    inside: str = ""  # the matrix' name in the file, without the slashes around it


def matrix_name(text: str) -> MatrixName:
    """Parse a matrix's name. Unknown extensions are taken as .npy. If a file of the whole name exists, it is meant."""
    ending = os.path.splitext(text.rstrip("/"))[1].lower()
    named = _NAMED.fullmatch(text)
    if named and not os.path.lexists(text):
        inside = named["inside"].strip("/")
        return MatrixName(_WITH_NAMES[named["ending"].lower()], named["file"], inside)
    return MatrixName(_WITH_NAMES.get(ending, "mtx" if ending == ".mtx" else "npy"), text)


def open_matrix(text: str, readers: int = 1) -> MatrixFile:
    """Open a matrix. Raises UsageError or DoesNotFit, whose messages lack the name.

    `readers`: the processes of this machine, including this one, that read it at the same time.
    """
    form, file, inside = matrix_name(text)
    if form == "mtx":
        return MtxFile(file, readers)
    if form == "npy":
        return open_npy(file)
    if form == "bed":
        return _open_bed(file, inside)
    return _open_hdf5(file, inside) if form == "hdf5" else _open_zarr(file, inside)


def new_matrix(text: str, shape: tuple[int, int], dtype: np.dtype) -> MatrixOutput:
    """The writer of a new matrix. UsageError if the format cannot hold such elements."""
    form, file, inside = matrix_name(text)
    if form in ("npy", "bed") and (ending := os.path.splitext(file)[1].lower()) in _NEVER_WRITTEN:
        raise UsageError(f"{file}: matrices are written as .npy, .h5, .zarr or .mtx, and not as {ending}", code="file-kind")
    if dtype.kind == "V" and form != "npy":
        raise UsageError(f"{file} cannot hold {dtype}: write .npy, or with --dtype float32", code="dtype")
    if form == "mtx":
        return _MtxOutput(file, shape, dtype)
    if form == "npy":
        return _NpyOutput(file, shape, dtype)
    return (_Hdf5Output if form == "hdf5" else _ZarrOutput)(file, inside, shape, dtype)


def _only_one(names: Sequence[str]) -> str:
    """The name of a file's only matrix. UsageError, without the file's name, if there are none or several."""
    if len(names) != 1:
        choice = ": add the name of one, after a colon" if names else ""
        raise UsageError(f"holds {_listed(names)}{choice}", code="dataset-missing")
    return names[0]


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "no matrix of numbers"
    return ", ".join(f"/{name}" for name in names[:_MOST_NAMES]) + (" …" if len(names) > _MOST_NAMES else "")


def _missing(what: str, name: str, names: Sequence[str], *, is_group: bool) -> UsageError:
    """The error for a missing name; it suggests the nearest one."""
    near = nearest(name, names, likeness=0.5)  # also g/A for A
    instead = f"did you mean /{near}?" if near else f"it holds {_listed(names)}"
    group = ", which is a group there" if is_group else ""
    return UsageError(f"has no {what} /{name}{group}: {instead}", code="dataset-missing")


class MatrixFile:
    """A matrix of numbers in a file. Every rank reads the part it needs."""

    def __init__(
        self,
        path: str,
        shape: tuple[int, ...] | None,
        dtype: np.dtype,
        chunk: tuple[int, ...],
        fetch: Callable[[Span, Span, np.ndarray], np.ndarray | None],
        *,
        parallel: bool = False,
    ) -> None:
        """UsageError, without the file's name, unless this is the shape and the type of a matrix of numbers.

        `chunk`: the least rows and columns per read. `fetch(rows, columns, target)`: returns these elements, or None after
        writing them to `target`, as it may if the types are the same. `parallel`: several threads may read at a time.
        """
        if shape is None or len(shape) != 2:
            raise UsageError(f"does not hold a matrix: its shape is {'unknown' if shape is None else shape}", code="dimensions")
        if dtype.kind not in _NUMBERS and dtype != _UNNAMED_16_BITS:
            raise UsageError(f"holds {dtype}: only numbers can be multiplied here", code="no-numbers")
        self.path, self.shape, self.dtype = path, (shape[0], shape[1]), dtype
        self._chunk, self._fetch, self._parallel = chunk, fetch, parallel

    def load(self) -> None:
        """Read now a file that can only be read as a whole. UsageError or DoesNotFit, without the file's name."""

    def read(
        self,
        rows: Span,
        into: np.ndarray,
        progress: Callable[[int], None] = tell_nobody,
        columns: Span | None = None,
        threads: int = 1,
    ) -> None:
        """Read these rows, of all columns or of these, into `into`, converted to its type; `progress` gets the number of rows
        done, in this thread. `threads`: read that many pieces at a time if the format allows it.

        HybridError if the file cannot be read, UsageError for values that the type cannot hold.
        """
        across, threads = Span(0, self.shape[1]) if columns is None else columns, threads if self._parallel else 1

        def read(piece: tuple[Span, Span]) -> int:
            height, width = piece
            target = into[height.within(rows).slice, width.within(across).slice]
            found = self._fetch(height, width, target)
            if found is not None:
                try:
                    with np.errstate(over="raise"):
                        target[...] = found
                except FloatingPointError:
                    raise UsageError(f"{self.path} holds values too large for {into.dtype}", code="file-values") from None
            return len(height) * len(width)

        if into.size:
            at_once = BYTES_AT_ONCE // threads  # threads may convert in temporary memory
            rectangles = _rectangles(rows, across, self._chunk, self.dtype.itemsize, at_once)
            on_threads(threads, read, rectangles, lambda done: progress(sum(done) // len(across)))
            progress(len(rows))


def _rectangles(rows: Span, columns: Span, chunk: tuple[int, ...], item: int, at_once: int) -> Iterator[tuple[Span, Span]]:
    """Rectangles of about `at_once` bytes, but at least a chunk. None share a chunk, so each is read and decompressed once."""
    in_columns = _whole_chunks(columns.hi, min(columns.hi, chunk[1]), at_once // max(1, chunk[0] * item))
    in_rows = _whole_chunks(rows.hi, chunk[0], at_once // max(1, min(len(columns), in_columns) * item))
    for height in _aligned(rows, in_rows):
        for width in _aligned(columns, in_columns):
            yield height, width


def _whole_chunks(length: int, chunk: int, wanted: int) -> int:
    """The largest multiple of `chunk` up to `wanted`; at least one chunk, and no more than the length needs."""
    chunk = max(1, chunk)
    return chunk * max(1, min(wanted, length) // chunk)


def _aligned(span: Span, step: int) -> Iterator[Span]:
    """The span, cut at the multiples of `step`."""
    for lo in range(span.lo // step * step, span.hi, step):
        yield Span(max(lo, span.lo), min(lo + step, span.hi))


def _in_chunks(path: str, array: Any, dtype: np.dtype, chunk: tuple[int, ...] | None) -> MatrixFile:
    """A dataset of HDF5 or an array of Zarr. `chunk`: None for contiguous storage."""
    name = array.name.strip("/")
    path = os.path.abspath(path) + (f":/{name}" if name else "")
    read_direct = getattr(array, "read_direct", None)  # h5py's, which needs no temporary copy

    def fetch(rows: Span, columns: Span, target: np.ndarray) -> np.ndarray | None:
        at = rows.slice, columns.slice
        try:
            if read_direct and target.dtype == dtype and target.flags.c_contiguous:
                return read_direct(target, at)
            return array[at]
        except Exception as error:  # codecs raise many kinds for damaged data
            raise HybridError(f"{path} cannot be read, rows {rows}: {one_line(error)}", code="file-unreadable") from error

    return MatrixFile(path, array.shape, dtype, chunk or (1, 1), fetch)


def _library(form: str, cannot: str) -> Any:
    """The module that reads and writes this format. UsageError, beginning with `cannot`, if it is missing or too old."""
    try:
        if form == "hdf5":
            return import_module("h5py")
        import_module("zarr.api.synchronous")  # version 2 lacks it
        return import_module("zarr")
    except ImportError as error:
        why = "without {}" if isinstance(error, ModuleNotFoundError) else f"by {{}} ({one_line(error)})"
        library = "h5py" if form == "hdf5" else "zarr-python 3, from Python 3.11 on"
        raise UsageError(f"{cannot} {why.format(library)}: {install(form)}", code="package-missing") from None


def _refuse_folder(path: str) -> None:
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError("is not a regular file", code="file-unreadable")


class Place(NamedTuple):
    """Rows of a matrix, or columns of one row, stored contiguously in a file from byte `at` on."""

    path: Path
    at: int
    rows: Span


class MatrixOutput:
    """A file or folder for a new matrix: row after row as in memory, from some byte on, unless the format overrides this.

    One process begins it under the temporary name `beside`; `begin` returns the first row's byte, which others pass to `write`.
    """

    by_rows = True  # an element's position does not depend on other elements

    def __init__(self, path: str, shape: tuple[int, int], dtype: np.dtype, header: bytes = b"") -> None:
        self.path, self.shape, self.dtype, self._header = path, shape, dtype, header
        self.row_bytes = shape[1] * dtype.itemsize
        self.size = len(header) + shape[0] * self.row_bytes  # in bytes; for files of libraries a few KiB too large

    def refuse(self, size: int) -> None:
        """Before the work, raise UsageError if no file can be written, DoesNotFit if there is no room for `size` bytes."""
        refuse_unwritable(self.path, size)

    def begin(self, beside: Path) -> int:
        """In one process, write everything but the elements."""
        with open(beside, "xb") as file:
            return file.write(self._header)

    def make_room(self, beside: Path, begun: int) -> None:
        """Extend the file to its whole size before any row is written. Existing data stay."""
        os.truncate(beside, max(os.path.getsize(beside), begun + self.shape[0] * self.row_bytes))

    def places(self, beside: Path, begun: int, rows: Span) -> Iterator[Place]:
        yield Place(beside, begun + rows.lo * self.row_bytes, rows)

    def _by_file(self, beside: Path, begun: int, rows: Span, columns: Span) -> Iterator[tuple[Path, list[tuple[int, Span]]]]:
        """For each file with some of these elements: at which byte which rows begin, whose elements follow one another."""
        for place in self.places(beside, begun, rows):
            first = place.at + columns.lo * self.dtype.itemsize
            together = (place.rows,) if len(columns) == self.shape[1] else pieces(place.rows, 1)
            yield place.path, [(first + (some.lo - place.rows.lo) * self.row_bytes, some) for some in together]

    def write(
        self, beside: Path, begun: int, rows: Span, values: np.ndarray, told: Callable[[], None], columns: Span | None = None
    ) -> None:
        """Write these rows, or these columns of them, from `values`; other processes may write other elements meanwhile. `told`
        is called now and then."""
        for path, places in self._by_file(beside, begun, rows, Span(0, self.shape[1]) if columns is None else columns):
            with open(path, "r+b", buffering=0) as file:
                for at, some in places:
                    data = memoryview(values[some.within(rows).slice].reshape(-1).view(np.uint8).data)
                    for part in pieces(Span(0, len(data)), BYTES_AT_ONCE):
                        write_whole(file.fileno(), data[part.slice], at + part.lo)
                        told()

    def read_back(self, beside: Path, begun: int, rows: Span, columns: Span) -> np.ndarray:
        """The bytes of these columns of the rows in the files; fewer if a file is shorter."""
        each = len(columns) * self.dtype.itemsize
        data = np.empty(len(rows) * each, np.uint8)
        for path, places in self._by_file(beside, begun, rows, columns):
            with open(path, "rb", buffering=0) as file:
                for at, found in places:
                    some = found.within(rows)
                    if left := read_whole(file.fileno(), data[some.lo * each : some.hi * each].data, at):
                        return data[: some.hi * each - left]
        return data


_UNNAMED_16_BITS = np.dtype("V2")  # `numpy.save` writes bfloat16 so


def open_npy(path: str) -> MatrixFile:
    """The matrix in a .npy file, of numbers or of two-byte elements without a named type.

    UsageError, without the file's name, for anything else, as the header and the file's size show before any allocation.
    """
    file = _opened(path)
    try:  # version 3 differs from 2 only in the names of fields
        is_old = np.lib.format.read_magic(file) == (1, 0)
        header = np.lib.format.read_array_header_1_0(file) if is_old else np.lib.format.read_array_header_2_0(file)
    except Exception:  # NumPy raises many kinds
        raise UsageError("is no .npy file, or has a malformed header", code="file-format") from None
    shape, by_columns, dtype = header
    if dtype.hasobject:
        raise UsageError("holds Python objects: matrices of numbers are read, and pickles are not", code="no-numbers")
    begins, path = file.tell(), os.path.abspath(path)

    def fill(array: np.ndarray, first: int) -> np.ndarray:
        return _filled(array, file, path, begins + first * dtype.itemsize)

    def fetch(rows: Span, columns: Span, target: np.ndarray) -> np.ndarray | None:
        lines, along, length = (columns, rows, shape[0]) if by_columns else (rows, columns, shape[1])
        as_it_is = not by_columns and target.dtype == dtype and target.flags.c_contiguous
        part = target if as_it_is else np.empty((len(lines), len(along)), dtype)
        if len(along) == length:
            fill(part, lines.lo * length)
        else:
            for line, values in zip(range(lines.lo, lines.hi), part, strict=True):
                fill(values, line * length + along.lo)
        return None if as_it_is else part.T if by_columns else part

    matrix = MatrixFile(path, shape, dtype, (shape[0], 1) if by_columns else (1, 1), fetch, parallel=True)
    more = os.fstat(file.fileno()).st_size - begins - math.prod(shape) * dtype.itemsize
    if min(shape) < 0 or more:
        but = f"{more} bytes follow" if more > 0 else "the file is cut short, or malformed"
        raise UsageError(f"does not hold the one matrix that its header promises: {but}", code="file-format")
    return matrix


def _opened(path: str) -> io.FileIO:
    """Open the file, until the matrix in it is dropped. UsageError, without its name, if that fails."""
    _refuse_folder(path)
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or one_line(error)}", code=code_of_reading(error)) from None


def _filled(array: np.ndarray, file: io.FileIO, path: str, at: int) -> np.ndarray:
    """Fill the contiguous array with the file's bytes from `at` on, and return it."""
    data = array.reshape(-1).view(np.uint8).data
    if read_whole(file.fileno(), data, at):
        cut = f"{path} has become shorter while it was read: it ends before byte {at + len(data)}"
        raise HybridError(cut, code="file-changed")
    return array


_GENOTYPES = {"alleles": (2, 0, 1, 0), "called": (1, 0, 1, 1)}  # by the matrix's name: values of 00, 01 (missing), 10, 11
_BED = b"\x6c\x1b\x01"  # the third byte: variant after variant
_BYTES_DECODED = 1 << 17  # at a time: the genotypes stay in a core's cache


def _open_bed(path: str, inside: str) -> MatrixFile:
    """The genotypes in a PLINK .bed file: a row for each variant, a column for each sample, as counted by the .fam file beside
    it. `inside`: a name of _GENOTYPES. UsageError, without the file's name."""
    name = inside or "alleles"
    if name not in _GENOTYPES:
        raise _missing("matrix", name, [*_GENOTYPES], is_group=False)
    file, fam = _opened(path), os.path.splitext(path)[0] + ".fam"
    if file.read(len(_BED)) != _BED:
        raise UsageError("is no .bed file of PLINK's, or one by samples: it does not begin with 6c 1b 01", code="file-format")
    try:
        with open(fam, "rb") as lines:
            samples = sum(1 for line in lines if line.strip())
    except OSError as error:
        raise UsageError(f"needs {fam}, which cannot be read: {error.strerror}", code=code_of_reading(error)) from None
    stride, size = -(-samples // 4), os.fstat(file.fileno()).st_size - len(_BED)
    if not samples or size % stride:
        raise UsageError(f"{size} bytes are no variants of {counted(samples, 'sample')} each ({fam})", code="file-format")
    # The eight genotypes of each pair of bytes. np.take releases the GIL.
    of_bytes = np.array(_GENOTYPES[name], np.int8)[np.arange(1 << 16)[:, None] >> np.arange(0, 16, 2) & 3].view(np.uint64)[:, 0]
    path = os.path.abspath(path)

    def fetch(rows: Span, columns: Span, target: np.ndarray) -> None:
        packed = np.zeros(len(rows) * stride + 1, np.uint8)  # one more byte, since they are decoded in pairs
        _filled(packed[:-1], file, path, len(_BED) + rows.lo * stride)
        for some in rows_of_about(_BYTES_DECODED, Span(0, len(rows)), stride):
            first, size = some.lo * stride, len(some) * stride
            pairs = packed[first : first + size + size % 2].view(np.uint16)
            genotypes = np.take(of_bytes, pairs, mode="clip").view(np.int8)[: 4 * size]
            target[some.slice] = genotypes.reshape(len(some), 4 * stride)[:, columns.slice]

    return MatrixFile(path, (size // stride, samples), np.dtype(np.int8), (1, samples), fetch, parallel=True)


class _NpyOutput(MatrixOutput):
    def __init__(self, path: str, shape: tuple[int, int], dtype: np.dtype) -> None:
        named = dtype if dtype.kind != "V" else _UNNAMED_16_BITS
        described = {"descr": np.lib.format.dtype_to_descr(named), "fortran_order": False, "shape": shape}
        header = io.BytesIO()
        np.lib.format.write_array_header_2_0(header, described)
        super().__init__(path, shape, dtype, header.getvalue())


# Matrix Market files are text: SciPy reads them whole; several ranks write them, in lines of equal length.

# In the coordinate format, with the copies for finding duplicates:
_BYTES_OF_AN_ENTRY = 96
_BYTES_OF_A_ROW = 8  # where its entries begin
_DIGITS_OF_AN_INTEGER = 20  # of 64 bits, with the sign
_NUMBERS_AT_ONCE = 1 << 17


class MtxFile(MatrixFile):
    """A matrix in a Matrix Market file, which is read whole: in `load`, so that a malformed file is an error before anything is
    computed, or in the first `read`."""

    def __init__(self, path: str, readers: int = 1) -> None:
        """`readers`: processes of this machine that each read it at the same time."""
        self._name, self._readers = path, readers
        self._loaded: Any = None
        _opened(path).close()  # its errors say more than SciPy's
        try:
            from scipy.io import mminfo
        except ImportError:
            raise UsageError(f"Matrix Market files are read by SciPy: {install('graphs')}", code="package-missing") from None
        with _reading_mtx():
            rows, columns, self._entries, form, field, _ = mminfo(path)
            if self._entries > rows * columns:
                raise ValueError(f"its header promises {self._entries} entries, of {rows}×{columns}")
        dtype = np.dtype(np.complex128 if field == "complex" else np.float64)  # a text has no type
        super().__init__(os.path.abspath(path), (rows, columns), dtype, (1, 1), self._fetch_loaded)
        self._bytes = self._entries * dtype.itemsize
        if form == "coordinate":
            self._bytes = self._entries * _BYTES_OF_AN_ENTRY + rows * _BYTES_OF_A_ROW
        self._refuse_beyond_memory()

    def load(self) -> None:
        self._refuse_beyond_memory()  # again: other files may have been read since
        if not all(self.shape):
            return  # SciPy would crash by a division by zero
        from scipy.io import mmread

        with _reading_mtx():
            self._loaded = mmread(self._name)
            if not isinstance(self._loaded, np.ndarray):
                entries, self._loaded = self._loaded.nnz, self._loaded.tocsr()  # which adds entries of the same place
                if self._loaded.nnz < entries:
                    raise ValueError("it names the same element twice; a symmetric file must hold one triangle only")

    def _fetch_loaded(self, rows: Span, columns: Span, target: np.ndarray) -> np.ndarray:
        if self._loaded is None:
            self.load()
        part = self._loaded[rows.slice, columns.slice]
        return part if isinstance(part, np.ndarray) else part.toarray()

    def _refuse_beyond_memory(self) -> None:
        need, free = self._bytes * self._readers, available_host_bytes()
        if need > free:
            each = f"each of {self._readers} processes reads all of this text"
            raise DoesNotFit(f"takes {readable(need)}, {readable(free)} are free: {each}; use .npy, .h5 or .zarr")


@contextmanager
def _reading_mtx() -> Iterator[None]:
    """A context in which SciPy reads a file. UsageError, with the line, if it cannot."""
    try:
        yield
    except (ValueError, OverflowError, TypeError, EOFError, OSError) as error:
        text = " ".join(str(error).split()).rstrip(".")
        raise UsageError(f"cannot be read: it is malformed: {text}", code="file-format") from None


class _MtxOutput(MatrixOutput):
    """A new Matrix Market file in the array format: column by column, a number on each line, in lines of equal length."""

    by_rows = False

    def __init__(self, path: str, shape: tuple[int, int], dtype: np.dtype) -> None:
        if dtype.kind in "biu":
            field, number = "unsigned-integer" if dtype == np.uint64 else "integer", f"%{_DIGITS_OF_AN_INTEGER}d"
        else:
            parts = 2 if dtype.kind == "c" else 1
            digits = 16 if dtype.itemsize == 8 * parts else 8  # behind the point: enough to read every number back exactly
            field, number = "complex" if parts == 2 else "real", " ".join([f"%{digits + 8}.{digits}e"] * parts)
        self._format, self._line = f"{number}\n", len(number % ((0,) * number.count("%"))) + 1
        header = f"%%MatrixMarket matrix array {field} general\n{shape[0]} {shape[1]}\n"
        super().__init__(path, shape, dtype, header.encode())
        self.size = len(header) + shape[0] * shape[1] * self._line

    def write(
        self, beside: Path, begun: int, rows: Span, values: np.ndarray, told: Callable[[], None], columns: Span | None = None
    ) -> None:
        with open(beside, "r+b", buffering=0) as file:
            for column in range(self.shape[1]):
                for part in pieces(rows, _NUMBERS_AT_ONCE):
                    numbers = values[part.within(rows).slice, column]
                    if numbers.dtype.kind == "c":
                        numbers = np.stack([numbers.real, numbers.imag], 1).reshape(-1)
                    text = (self._format * len(part)) % tuple(numbers.tolist())
                    write_whole(file.fileno(), text.encode(), begun + (column * self.shape[0] + part.lo) * self._line)
                    told()


# HDF5 without MPI lets only one process write a file. So one process creates it by h5py, with a contiguous dataset, and asks for
# the dataset's offset; then every rank writes its rows there, as in a .npy file.

_HDF5_BYTES = 4096  # bytes of HDF5's own data in a file with one matrix
_GROUP_BYTES = 1024
_FAILURES = (KeyError, OSError, RuntimeError, ValueError)  # h5py's, for missing or malformed data


def _open_hdf5(path: str, inside: str) -> MatrixFile:
    """The dataset `inside` the file; if empty, the file's only matrix. UsageError, without the file's name."""
    h5py = _library("hdf5", "cannot be read")
    _refuse_folder(path)
    file = _hdf5_file(h5py, path)
    try:
        inside, dataset = inside or _only_one(_hdf5_matrices(h5py, file)), None
        with suppress(*_FAILURES):  # also for a dangling link
            dataset = file[inside]
        if not isinstance(dataset, h5py.Dataset):
            raise _missing("dataset", inside, _hdf5_matrices(h5py, file), is_group=dataset is not None)
        # Such a dataset could expose any file that this user may read.
        if dataset.external or dataset.is_virtual or not os.path.samefile(dataset.file.filename, path):
            raise UsageError("takes elements from other files: h5repack, or h5py, copies them into one", code="file-kind")
        return _in_chunks(path, dataset, dataset.dtype, dataset.chunks)
    except TypeError as error:  # h5py's, for types that NumPy lacks
        file.close()
        raise UsageError(f"holds what is no matrix of numbers: {one_line(error)}", code="file-format") from None
    except BaseException:
        file.close()
        raise


def _hdf5_file(h5py: Any, path: str) -> Any:
    """Open the file for reading. UsageError, without the file's name, if that fails."""
    try:
        return h5py.File(path, "r", locking="best-effort")
    except BlockingIOError:
        raise UsageError("is open for writing in another process: wait until it is closed", code="file-locked") from None
    except OSError as error:
        if error.errno:
            raise UsageError(f"cannot be read: {os.strerror(error.errno)}", code=code_of_reading(error)) from None
        raise UsageError(f"is no HDF5 file, cut short or malformed: {one_line(error)}", code="file-format") from None


def _hdf5_matrices(h5py: Any, file: Any) -> list[str]:
    """The names of all datasets that are matrices of numbers; links are not followed."""
    found: list[str] = []

    def visit(name: str, each: Any) -> None:
        with suppress(TypeError):  # types that NumPy lacks
            if isinstance(each, h5py.Dataset) and len(each.shape or ()) == 2 and each.dtype.kind in _NUMBERS:
                found.append(name)

    try:
        file.visititems(visit)
    except _FAILURES as error:
        raise UsageError(f"is a malformed HDF5 file: {one_line(error)}", code="file-format") from None
    return found


class _Hdf5Output(MatrixOutput):
    """A new HDF5 file with one dataset."""

    def __init__(self, path: str, inside: str, shape: tuple[int, int], dtype: np.dtype) -> None:
        super().__init__(path, shape, dtype)
        self._name = inside or "C"
        self.size += _HDF5_BYTES + _GROUP_BYTES * self._name.count("/")

    def refuse(self, size: int) -> None:
        h5py = _library("hdf5", f"{self.path} cannot be written")
        super().refuse(size)
        if not (os.path.exists(self.path) and os.path.getsize(self.path)):
            return
        try:
            with _hdf5_file(h5py, self.path) as file:
                held: list[str] = []
                file.visit_links(held.append)
        except UsageError as error:
            raise UsageError(f"{self.path} is there, and {error}: remove it, or name another file", code="file-exists") from None
        lost = [name for name in held if name != self._name and not self._name.startswith(f"{name}/")]
        if lost:
            remedy = "name another file; h5copy can put a dataset of it into this one"
            raise UsageError(f"{self.path} also holds {_listed(lost)}, which would be lost: {remedy}", code="file-exists")

    def begin(self, beside: Path) -> int:
        import h5py

        with h5py.File(beside, "x", locking="best-effort") as file:
            dataset = file.create_dataset(self._name, self.shape, self.dtype)
            if dataset.size:
                dataset[0, 0] = 0  # the first write makes HDF5 allocate the dataset
            return dataset.id.get_offset() or 0


# Zarr stores are folders, read by zarr-python 3. A new one is version 3, with one array in uncompressed chunks of whole rows: the
# file of each chunk has its rows as in memory, the last one padded with zeros.

_ZARR_BYTES = 4096  # bytes for each folder and each file of metadata


def _open_zarr(path: str, inside: str) -> MatrixFile:
    """The array `inside` the store; if empty, the store itself or its only array. UsageError, without the store's name."""
    zarr = _library("zarr", "cannot be read")
    if os.path.isfile(path):
        raise UsageError("is a file, and Zarr stores are read that are folders", code="file-unreadable")
    if not os.path.isdir(path):
        raise UsageError("cannot be read: No such file or directory", code="file-missing")
    node = _node(zarr, path, inside)
    if not isinstance(node, zarr.Array):
        names = _zarr_matrices(zarr, _node(zarr, path, ""))
        if inside:
            raise _missing("array", inside, names, is_group=bool(node))
        node = _node(zarr, path, _only_one(names))
    metadata = node.metadata.to_dict()
    encoded = [metadata.get(each) for each in ("codecs", "filters", "compressor")]
    if "pickle" in str(encoded).lower():
        raise UsageError("is encoded by pickle, which is not read: it runs any code that a store has in it", code="file-format")
    if node.nchunks_initialized < node.nchunks:  # zarr-python omits chunks of the fill value
        missing = counted(node.nchunks - node.nchunks_initialized, "chunk")
        warnings.warn(f"{path} lacks {missing} of {node.nchunks}, read as the fill value {node.fill_value}", Remark, stacklevel=2)
    return _in_chunks(path, node, np.dtype(node.dtype), node.shards or node.chunks)


def _node(zarr: Any, path: str, inside: str) -> Any:
    """The group or array of this name; None if the store has none."""
    try:
        return zarr.open(zarr.storage.LocalStore(path, read_only=True), path=inside, mode="r")
    except FileNotFoundError:
        if inside:
            return None
        raise UsageError("is no Zarr store: it has neither zarr.json nor .zarray or .zgroup", code="file-format") from None
    except Exception as error:  # zarr raises many kinds for malformed metadata
        where = f" of /{inside}" if inside else ""
        raise UsageError(f"has malformed metadata{where}: {one_line(error)}", code="file-format") from None


def _zarr_matrices(zarr: Any, group: Any) -> list[str]:
    """The names of all arrays in the group that are matrices of numbers."""
    if not isinstance(group, zarr.Group):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr warns of other files in the folder
            members = sorted(group.members(max_depth=None))
    except Exception as error:  # likewise
        raise UsageError(f"has malformed metadata: {one_line(error)}", code="file-format") from None
    return [name for name, each in members if isinstance(each, zarr.Array) and each.ndim == 2 and each.dtype.kind in _NUMBERS]


class _ZarrOutput(MatrixOutput):
    """A new Zarr store with one array."""

    def __init__(self, path: str, inside: str, shape: tuple[int, int], dtype: np.dtype) -> None:
        super().__init__(path, shape, dtype)
        self._name, height = inside, shape[0]
        chunks = max(1, -(-self.size // BYTES_AT_ONCE))
        self._chunk_rows = max(1, -(-height // chunks))
        chunks = -(-height // self._chunk_rows)
        self.size = chunks * (self._chunk_rows * self.row_bytes + 2 * _ZARR_BYTES) + _ZARR_BYTES * (2 + 2 * inside.count("/"))

    def refuse(self, size: int) -> None:
        _library("zarr", f"{self.path} cannot be written")
        if os.path.lexists(self.path) and not (os.path.isdir(self.path) and not os.listdir(self.path)):
            raise UsageError(f"{self.path} is there: remove it, or name another folder", code="file-exists")
        refuse_unwritable(self.path, size, folder=True)

    def begin(self, beside: Path) -> int:
        zarr = _library("zarr", f"{self.path} cannot be written")
        zarr.create_array(
            zarr.storage.LocalStore(beside),
            name=self._name or None,
            shape=self.shape,
            chunks=(self._chunk_rows, max(1, self.shape[1])),
            dtype=self.dtype,
            compressors=None,
            serializer=zarr.codecs.BytesCodec(endian=sys.byteorder),
        )
        self.make_room(beside, 0)
        return 0

    def make_room(self, beside: Path, begun: int) -> None:
        for place in self.places(beside, 0, Span(0, self.shape[0])):
            place.path.parent.mkdir(parents=True, exist_ok=True)
            with open(place.path, "ab") as file:
                file.truncate(self._chunk_rows * self.row_bytes)

    def places(self, beside: Path, begun: int, rows: Span) -> Iterator[Place]:
        chunks = beside.joinpath(*self._name.split("/"), "c")
        for some in _aligned(rows, self._chunk_rows) if self.row_bytes else ():
            chunk, row = divmod(some.lo, self._chunk_rows)
            yield Place(chunks / str(chunk) / "0", row * self.row_bytes, some)
