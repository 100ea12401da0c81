# SPDX-License-Identifier: MIT
"""Matrices in files: NumPy's .npy, Matrix Market, HDF5 and Zarr."""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hybrid.core.installation import install
from hybrid.core.spans import Span
from hybrid.core.text import readable
from hybrid.errors import DoesNotFit, HybridError, UsageError, one_line
from hybrid.host.files import code_of_reading, refuse_unwritable, write_whole
from hybrid.host.matrix_file import (
    BYTES_AT_ONCE,
    NUMBERS,
    Place,
    RawRows,
    listed,
    meant,
    only_one,
    refuse_name,
    refuse_no_matrix,
    refusing_overflow,
)
from hybrid.host.memory import available_host_bytes
from hybrid.host.threads import rows_of_about

# -------- chunked matrix
# Matrices in files of which a library reads rectangles, and which may be stored in chunks, compressed ones, too.


class ChunkedMatrix:
    """A dataset of HDF5 or an array of Zarr."""

    at_once = False

    def __init__(self, path: str, array: Any, chunk: tuple[int, ...] | None) -> None:
        """`chunk`: the rows and columns of a chunk; None for a matrix that is stored as a whole. UsageError for what is no
        matrix."""
        refuse_no_matrix(array.shape, array.dtype)
        name = array.name.strip("/")
        self.path = os.path.abspath(path) + (f":/{name}" if name else "")
        self.shape: tuple[int, int] = array.shape
        self.dtype = np.dtype(array.dtype)
        self._array, self._chunk = array, chunk or (1, 1)
        self._read_direct = getattr(array, "read_direct", None)  # h5py has it, and reads without a copy in between

    def load(self) -> None:
        """Do nothing: rows are read when they are needed."""

    def read(self, rows: Span, into: np.ndarray, progress: Callable[[int], None] = lambda done: None) -> None:
        """Write these rows to `into`, converted to its type; `progress` gets the number of rows done so far.

        HybridError for what cannot be read, UsageError for values that the type cannot hold.
        """
        area = max(1, len(rows) * self.shape[1])
        done = 0
        for height, width in rectangles(rows, self.shape[1], self._chunk, self.dtype.itemsize):
            self._read(height, width, into[height.within(rows).slice, width.slice])
            done += len(height) * len(width)
            progress(len(rows) * done // area)

    def _read(self, rows: Span, columns: Span, target: np.ndarray) -> None:
        at = rows.slice, columns.slice
        try:
            if self._read_direct and target.dtype == self.dtype and target.flags.c_contiguous:
                self._read_direct(target, at)
                return
            part = self._array[at]
        except Exception as error:  # codecs raise many kinds for what is damaged
            raise HybridError(f"{self.path} cannot be read, rows {rows}: {one_line(error)}", code="file-unreadable") from error
        with refusing_overflow(self.path, target.dtype):
            target[...] = part


def rectangles(rows: Span, width: int, chunk: tuple[int, ...], item: int) -> Iterator[tuple[Span, Span]]:
    """The rows of a matrix in rectangles of about BYTES_AT_ONCE, but of at least a chunk.

    No two of them need the same chunk, so each chunk is read and decompressed once.
    """
    chunk_columns = min(width, chunk[1])
    in_columns = _most(width, chunk_columns, BYTES_AT_ONCE // max(1, chunk[0] * item))
    in_rows = _most(rows.hi, chunk[0], BYTES_AT_ONCE // max(1, min(width, in_columns) * item))
    for height in _aligned(rows, in_rows):
        for columns in _aligned(Span(0, width), in_columns):
            yield height, columns


def _most(length: int, chunk: int, wanted: int) -> int:
    """The largest multiple of `chunk` that is at most `wanted`; but at least one chunk, and no more than the length needs."""
    chunk = max(1, chunk)
    return chunk * max(1, min(wanted, length) // chunk)


def _aligned(span: Span, step: int) -> Iterator[Span]:
    """The span, cut at the multiples of `step`."""
    for lo in range(span.lo // step * step, span.hi, step):
        yield Span(max(lo, span.lo), min(lo + step, span.hi))


# -------- npy file
# Matrices in .npy files: the header is checked against the file's size before any memory is taken, and pickle is never read.
#
# Elements are read, not mapped: a file that is cut short meanwhile is then an error, and not a SIGBUS that ends the process.

_WITHOUT_A_NAME = np.dtype("V2")
_MAGIC = b"\x93NUMPY"


class NpyFile:
    """A matrix of numbers in a file; or of two-byte elements without a named type, as which `numpy.save` writes bfloat16."""

    at_once = False

    def __init__(self, path: str) -> None:
        """UsageError for anything else, without the file's name."""
        if os.path.exists(path) and not os.path.isfile(path):
            raise UsageError("is not a regular file", code="file-unreadable")
        array = _mapped(path)
        refuse_no_matrix(array.shape, np.dtype(np.int16) if array.dtype == _WITHOUT_A_NAME else array.dtype)
        self.path = os.path.abspath(path)
        self.shape: tuple[int, int] = array.shape
        self.dtype = array.dtype
        self._offset, self._by_columns = array.offset, not array.flags.c_contiguous
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (open as long as this object lives)

    def load(self) -> None:
        """Do nothing: rows are read when they are needed."""

    def read(self, rows: Span, into: np.ndarray, progress: Callable[[int], None] = lambda done: None) -> None:
        """Write these rows to `into`, converted to its type; `progress` gets the number of rows done so far.

        HybridError where the file has become shorter, UsageError for values that the type cannot hold.
        """
        with refusing_overflow(self.path, into.dtype):
            (self._read_columns if self._by_columns else self._read_rows)(rows, into, progress)

    def _read_rows(self, rows: Span, into: np.ndarray, progress: Callable[[int], None]) -> None:
        for group in rows_of_about(BYTES_AT_ONCE, rows, self.shape[1] * self.dtype.itemsize):
            target = into[group.within(rows).slice]
            as_it_is = into.dtype == self.dtype and target.flags.c_contiguous
            part = target if as_it_is else np.empty(target.shape, self.dtype)
            self._fill(part, group.lo * self.shape[1])
            if not as_it_is:
                target[...] = part
            progress(group.hi - rows.lo)

    def _read_columns(self, rows: Span, into: np.ndarray, progress: Callable[[int], None]) -> None:
        width = self.shape[1]
        for group in rows_of_about(BYTES_AT_ONCE, Span(0, width), len(rows) * self.dtype.itemsize):
            part = np.empty((len(group), len(rows)), self.dtype)
            for column, values in zip(range(group.lo, group.hi), part, strict=True):
                self._fill(values, column * self.shape[0] + rows.lo)
            into[:, group.slice] = part.T
            progress(len(rows) * group.hi // width)

    def _fill(self, array: np.ndarray, first: int) -> None:
        """Fill a contiguous array with the file's elements from number `first` on."""
        at, left = self._offset + first * self.dtype.itemsize, array.reshape(-1).view(np.uint8).data.cast("B")
        while left:
            self._file.seek(at)
            count = self._file.readinto(left)
            if not count:
                raise HybridError(
                    f"{self.path} has become shorter while it was read: it ends before byte {at + len(left)}", code="file-changed"
                )
            at, left = at + count, left[count:]


def _mapped(path: str) -> np.memmap:
    """The file as an array of NumPy. UsageError, without the file's name, where it is none."""
    try:
        with open(path, "rb") as file:
            begins = file.read(len(_MAGIC))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", code=code_of_reading(error)) from None
    if begins != _MAGIC:
        raise UsageError("is no .npy file: it does not begin like one", code="file-format")
    try:
        with np.errstate(over="ignore"):  # refuses a header that promises more than there is
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # it raises many kinds for a malformed header
        text = str(error)
        if "Python objects" in text:
            raise UsageError(
                "holds Python objects: matrices of numbers are read, and pickles are not", code="no-numbers"
            ) from None
        if isinstance(error, OverflowError) or "greater than file size" in text:
            raise UsageError(
                "is cut short, or malformed: its header promises more elements than the file holds", code="file-format"
            ) from None
        if text.startswith("EOF"):
            raise UsageError("is cut short: it ends within its header", code="file-format") from None
        if "format version" in text:
            raise UsageError(
                "has a malformed header: NumPy reads no version of the format that it names", code="file-format"
            ) from None
        raise UsageError("has a malformed header: type and shape cannot be read from it", code="file-format") from None
    more = os.path.getsize(path) - array.offset - array.nbytes
    if more > 0:
        raise UsageError(
            f"is malformed, or holds several arrays: {more} bytes follow the one that its header promises", code="file-format"
        )
    return array


class NpyOutput(RawRows):
    """A new .npy file."""

    def __init__(self, path: str, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.path = path
        named = dtype if dtype.kind != "V" else _WITHOUT_A_NAME
        described = {"descr": np.lib.format.dtype_to_descr(named), "fortran_order": False, "shape": shape}
        header = io.BytesIO()
        np.lib.format.write_array_header_2_0(header, described)
        self._header = header.getvalue()
        self.size = len(self._header) + shape[0] * shape[1] * dtype.itemsize

    def refuse(self, size: int) -> None:
        refuse_unwritable(self.path, size)

    def begin(self, beside: Path) -> int:
        with open(beside, "xb") as file:
            return file.write(self._header)


# -------- mtx file
# Matrices in Matrix Market files, which are text: they are read whole, by SciPy, and written in lines of one length, by
# several ranks.

_NUMBERS = ("integer", "real", "double", "pattern", "unsigned-integer", "complex")
_BYTES_OF_AN_ENTRY = 96  # in the coordinate format, with the copies that are made to find elements that are named twice
_DIGITS_OF_AN_INTEGER = 20  # the most that one of 64 bits has, with its sign
_NUMBERS_AT_ONCE = 1 << 17


class Header(NamedTuple):
    """What a Matrix Market file says of itself."""

    shape: tuple[int, int]
    entries: int
    sparse: bool  # coordinates, and not all elements
    is_complex: bool = False


def header(path: str) -> Header:
    """The header of the file. UsageError, without the file's name, for one that holds no numbers, or promises more of them than
    the matrix has elements."""
    try:
        from scipy.io import mminfo
    except ImportError:
        raise UsageError(f"Matrix Market files are read by SciPy: {install('graphs')}", code="package-missing") from None
    try:
        with _as_scipy_takes_it(path) as source:
            rows, columns, entries, form, field, _ = mminfo(source)
    except (ValueError, OverflowError, TypeError, EOFError) as error:
        raise UsageError(_in_plain_words(error), code="file-format") from None
    if entries > rows * columns:
        raise UsageError(f"its header promises {entries} entries, of {rows}×{columns}", code="file-format")
    if field not in _NUMBERS:
        raise UsageError(f"it holds {field} numbers: only {', '.join(_NUMBERS)} are read", code="no-numbers")
    return Header((rows, columns), entries, form == "coordinate", field == "complex")


def _in_plain_words(error: Exception) -> str:
    """SciPy's reason why a file cannot be read, in other words where it is a known one."""
    text = " ".join(str(error).split()).rstrip(".")
    if "banner" in text:
        return "it is no Matrix Market file: it does not begin with %%MatrixMarket"
    if "Premature EOF" in text:
        return "it is cut short: it ends within its header"
    if missing := re.match(r"Truncated file\. Expected another (\d+) lines", text):
        return f"it is cut short: {missing[1]} more line{'s' * (missing[1] != '1')} must follow"
    return f"it is malformed: {text}"


def _as_scipy_takes_it(path: str) -> AbstractContextManager[Any]:
    """A context that gives the file's name; where that is no valid text, the open file, from which SciPy reads more slowly."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return open(path, "rb")
    return nullcontext(path)


def elements(path: str, found: Header) -> Any:
    """The matrix as one of NumPy, or where it is stored by coordinates as a sparse one of SciPy. UsageError, without the file's
    name."""
    from scipy.io import mmread

    if not all(found.shape):
        return np.zeros(found.shape)  # SciPy ends the process by a division by zero
    newer = {"spmatrix": False} if "spmatrix" in signature(mmread).parameters else {}
    try:
        with _as_scipy_takes_it(path) as source:
            matrix: Any = mmread(source, **newer)
    except (ValueError, OverflowError, TypeError, EOFError) as error:
        raise UsageError(_in_plain_words(error), code="file-format") from None
    if matrix.shape != found.shape:
        raise UsageError(
            f"it has become another matrix while it was read: {matrix.shape[0]}×{matrix.shape[1]}", code="file-changed"
        )
    if isinstance(matrix, np.ndarray):
        return matrix
    matrix = matrix.tocoo()
    numbers = matrix.row.astype(np.int64) * found.shape[1] + matrix.col
    if len(np.unique(numbers)) < matrix.nnz:
        raise UsageError("it names the same element twice; a symmetric file must hold one triangle only", code="file-format")
    return matrix


class MtxFile:
    """A matrix in a Matrix Market file.

    Who reads some rows of it reads all of it: in `load`, so that what is malformed is known before anything is computed, or else
    in `read`.
    """

    at_once = True

    def __init__(self, path: str, readers: int) -> None:
        """`readers`: processes of this machine that read it at the same time, each for itself."""
        try:
            open(path, "rb").close()  # SciPy has no word of its own for each reason why not
            self._header = header(path)
        except IsADirectoryError:
            raise UsageError("is not a regular file", code="file-unreadable") from None
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror or one_line(error)}", code=code_of_reading(error)) from None
        except UsageError as error:
            raise UsageError(f"cannot be read: {error}", code=error.code) from None
        self.path, self.shape = os.path.abspath(path), self._header.shape
        self.dtype = np.dtype(np.complex128 if self._header.is_complex else np.float64)  # a text has no type
        self._readers = readers
        self._loaded: Any = None
        self._refuse_beyond_memory()

    def _refuse_beyond_memory(self) -> None:
        each = _BYTES_OF_AN_ENTRY if self._header.sparse else self.dtype.itemsize
        need, free = each * self._header.entries * self._readers, available_host_bytes()
        if need > free:
            whole = f"each of {self._readers} ranks of a node" if self._readers > 1 else "who reads a row"
            raise DoesNotFit(
                f"takes {readable(need)} to be read, {readable(free)} are free: it is text, of which {whole} reads all; "
                "use .npy, .h5 or .zarr"
            )

    def load(self) -> None:
        """Read the file now, for the next `read`. UsageError for what is malformed, DoesNotFit for what is too large; without
        the file's name."""
        self._refuse_beyond_memory()  # again: others may have been read since
        try:
            self._loaded = elements(self.path, self._header)
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror or one_line(error)}", code=code_of_reading(error)) from None
        except UsageError as error:
            raise UsageError(f"cannot be read: {error}", code=error.code) from None

    def read(self, rows: Span, into: np.ndarray, progress: Callable[[int], None] = lambda done: None) -> None:
        """Write these rows to `into`, converted to its type. UsageError for what is malformed, or what the type cannot hold."""
        if not len(rows):
            return
        if self._loaded is None:
            try:
                self.load()
            except (UsageError, DoesNotFit) as error:
                raise type(error)(f"{self.path} {error}", code=error.code) from None
        found, self._loaded = self._loaded, None
        with refusing_overflow(self.path, into.dtype):
            if isinstance(found, np.ndarray):
                into[...] = found[rows.slice]
            else:
                mine = (rows.lo <= found.row) & (found.row < rows.hi)
                into[...] = 0
                into[found.row[mine] - rows.lo, found.col[mine]] = found.data[mine]
        progress(len(rows))


class MtxOutput:
    """A new Matrix Market file in the array format: column by column, each number on a line of its own."""

    def __init__(self, path: str, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.path = path
        field, number = _written(dtype)
        self._format, self._line = f"{number}\n", len(number % ((0,) * number.count("%"))) + 1
        self._header = f"%%MatrixMarket matrix array {field} general\n{shape[0]} {shape[1]}\n".encode()
        self.size = len(self._header) + shape[0] * shape[1] * self._line

    def refuse(self, size: int) -> None:
        refuse_unwritable(self.path, size)

    def begin(self, beside: Path) -> int:
        with open(beside, "xb") as file:
            return file.write(self._header)

    def write(self, beside: Path, begun: int, matrix: np.ndarray, rows: Span, told: Callable[[], None]) -> None:
        height, width = matrix.shape
        descriptor = os.open(beside, os.O_WRONLY)
        try:
            for column in range(width):
                for lo in range(rows.lo, rows.hi, _NUMBERS_AT_ONCE):
                    part = matrix[lo : min(lo + _NUMBERS_AT_ONCE, rows.hi), column]
                    numbers = np.stack([part.real, part.imag], 1).reshape(-1) if part.dtype.kind == "c" else part
                    text = (self._format * len(part)) % tuple(numbers.tolist())
                    write_whole(descriptor, text.encode(), begun + (column * height + lo) * self._line)
                    told()
        finally:
            os.close(descriptor)


def _written(dtype: np.dtype) -> tuple[str, str]:
    """The header's word for such numbers, and the format of one of them, which gives every number the same length."""
    if dtype.kind in "biu":
        return "unsigned-integer" if dtype == np.uint64 else "integer", f"%{_DIGITS_OF_AN_INTEGER}d"
    parts = 2 if dtype.kind == "c" else 1
    digits = 16 if dtype.itemsize == 8 * parts else 8  # behind the point: with them every number is read as it was
    return "complex" if parts == 2 else "real", " ".join([f"%{digits + 8}.{digits}e"] * parts)


# -------- hdf5 file
# Matrices in HDF5 files, by h5py: datasets are read by rectangles; a new file is made with room for the rows of a matrix.
#
# HDF5 without MPI lets one process write a file. Here one process makes it, with a dataset that is stored as a whole, and
# finds the place of that in the file; then every rank writes its rows there, as it does in a .npy file.

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
        raise UsageError(f"has no dataset /{name}: {meant(name, _hdf5_matrices(h5py, file))}", code="dataset-missing") from None
    if not isinstance(found, h5py.Dataset):
        raise UsageError(
            f"has no dataset /{name}, which is a group there: {meant(name, _hdf5_matrices(h5py, file))}", code="dataset-missing"
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
    return file[only_one(_hdf5_matrices(h5py, file))]


def _hdf5_matrices(h5py: Any, file: Any) -> list[str]:
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


# -------- zarr folder
# Matrices in Zarr stores that are folders, by zarr-python 3: they are read by rectangles, and written by several ranks in
# whole chunks.

# The codecs by which a chunk may be encoded. Others are refused: the one that pickles would run any code that a store has in it.
_CODECS = {
    *("bytes", "transpose", "sharding_indexed", "blosc", "gzip", "zstd", "zlib", "bz2", "lzma", "lz4"),
    *("delta", "shuffle", "fixedscaleoffset", "bitround", "quantize", "astype", "packbits"),
    *("crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3"),
}
_OLDEST_PYTHON = (3, 11)  # on which zarr-python 3 runs
_AROUND = 4096  # bytes for each folder and each file of metadata


def open_array(path: str, inside: str) -> ChunkedMatrix:
    """The array `inside` the store; where that is empty, the store itself or its only array. UsageError, without the store's
    name."""
    zarr = _zarr("cannot be read")
    if os.path.isfile(path):
        raise UsageError("is a file, and Zarr stores are read that are folders", code="file-unreadable")
    if not os.path.isdir(path):
        raise UsageError("cannot be read: No such file or directory", code="file-missing")
    node = _node(zarr, path, inside)
    if not isinstance(node, zarr.Array):
        names = _zarr_matrices(zarr, _node(zarr, path, ""))
        if inside:
            raise UsageError(
                f"has no array /{inside}{', which is a group there' if node else ''}: {meant(inside, names)}",
                code="dataset-missing",
            )
        node = _node(zarr, path, only_one(names))
    for codec in _codecs(node):
        if codec not in _CODECS:
            raise UsageError(
                f"is encoded by {codec!r}, which is not read: pickles and unknown codecs could run any code", code="file-format"
            )
    return ChunkedMatrix(path, node, node.shards or node.chunks)


def _zarr(cannot: str) -> Any:
    """The module zarr. UsageError, beginning with `cannot`, where version 3 is missing."""
    try:
        import zarr
        from zarr.errors import BaseZarrError  # noqa: F401 (which version 2 has not)
    except ImportError as error:
        if sys.version_info < _OLDEST_PYTHON:
            here = ".".join(map(str, sys.version_info[:2]))
            raise UsageError(
                f"{cannot}: zarr-python 3 needs Python 3.11 or newer, and this is {here}", code="package-missing"
            ) from None
        why = "without zarr-python 3" if isinstance(error, ModuleNotFoundError) else f"by zarr-python ({one_line(error)})"
        raise UsageError(f"{cannot} {why}: {install('zarr')}", code="package-missing") from None
    return zarr


def _node(zarr: Any, path: str, inside: str) -> Any:
    """The group or array of this name; None where there is nothing of that name in the store."""
    try:
        return zarr.open(zarr.storage.LocalStore(path, read_only=True), path=inside, mode="r")
    except FileNotFoundError:
        if inside:
            return None
        raise UsageError("is no Zarr store: it has neither zarr.json nor .zarray or .zgroup", code="file-format") from None
    except Exception as error:  # it raises many kinds for malformed metadata
        raise UsageError(
            f"has malformed metadata{f' of /{inside}' if inside else ''}: {one_line(error)}", code="file-format"
        ) from None


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
    return [name for name, each in members if isinstance(each, zarr.Array) and each.ndim == 2 and each.dtype.kind in NUMBERS]


def _codecs(array: Any) -> list[str]:
    """The names of all codecs of the array, also within shards, without the prefix of those that zarr-python takes from
    numcodecs."""
    metadata = array.metadata.to_dict()
    used = [*metadata.get("codecs", ()), *(metadata.get("filters") or ()), metadata.get("compressor")]
    return [name.removeprefix("numcodecs.") for each in used if each for name in _names(each)]


def _names(codec: Any) -> Iterator[str]:
    """The name of a codec, and those of the codecs within it."""
    yield str(codec.get("name") or codec.get("id"))
    settings = codec.get("configuration") or {}
    for inner in (*settings.get("codecs", ()), *settings.get("index_codecs", ())):
        yield from _names(inner)


class ZarrOutput(RawRows):
    """A new Zarr store, version 3, with one array in chunks of whole rows that are not compressed.

    The file of each chunk has its rows as they lie in memory; that of the last one is filled up with zeros.
    """

    def __init__(self, path: str, inside: str, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.path, self._name, self._shape, self._dtype = path, inside, shape, dtype
        height, width = shape
        chunks = max(1, -(-height * width * dtype.itemsize // BYTES_AT_ONCE))
        self._chunk_rows = max(1, -(-height // chunks))
        chunks = -(-height // self._chunk_rows)
        self.size = chunks * (self._chunk_rows * width * dtype.itemsize + 2 * _AROUND) + _AROUND * (2 + 2 * inside.count("/"))

    def refuse(self, size: int) -> None:
        _zarr(f"{self.path} cannot be written")
        if sys.byteorder != "little":
            raise UsageError(
                f"{self.path} cannot be written: chunks are little-endian, and this machine is not", code="file-unwritable"
            )
        if self._name:
            refuse_name(self.path, self._name)
        if os.path.lexists(self.path) and not (os.path.isdir(self.path) and not os.listdir(self.path)):
            raise UsageError(
                f"{self.path} is there, and a folder cannot be replaced in one step: remove it, or name another",
                code="file-exists",
            )
        refuse_unwritable(self.path, size, folder=True)

    def begin(self, beside: Path) -> int:
        import zarr

        zarr.create_array(
            zarr.storage.LocalStore(beside),
            name=self._name or None,
            shape=self._shape,
            chunks=(self._chunk_rows, max(1, self._shape[1])),
            dtype=self._dtype,
            compressors=None,
        )
        self.make_room(beside, 0, 0)
        return 0

    def make_room(self, beside: Path, begun: int, rows_bytes: int) -> None:
        height, width = self._shape
        for first in range(0, height if width else 0, self._chunk_rows):
            chunk = self._chunk(beside, first)
            chunk.parent.mkdir(parents=True, exist_ok=True)
            with open(chunk, "ab") as file:
                file.truncate(self._chunk_rows * width * self._dtype.itemsize)

    def _chunk(self, beside: Path, row: int) -> Path:
        """The file of the chunk with this row."""
        return beside.joinpath(*self._name.split("/"), "c", str(row // self._chunk_rows), "0")

    def places(self, beside: Path, begun: int, rows: Span, row_bytes: int) -> Iterator[Place]:
        first = rows.lo // self._chunk_rows * self._chunk_rows
        for lo in range(first, rows.hi if row_bytes else first, self._chunk_rows):
            some = rows.common(Span(lo, lo + self._chunk_rows))
            yield Place(self._chunk(beside, lo), (some.lo - lo) * row_bytes, some)

    def around(self, beside: Path, begun: int, rows_bytes: int) -> Iterator[bytes]:
        for metadata in sorted(beside.rglob("zarr.json")):
            yield str(metadata.relative_to(beside)).encode()
            yield metadata.read_bytes()
        if all(self._shape):
            last = self._shape[0] - 1
            with open(self._chunk(beside, last), "rb") as file:
                file.seek((last % self._chunk_rows + 1) * self._shape[1] * self._dtype.itemsize)
                yield file.read()
