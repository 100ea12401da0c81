# SPDX-License-Identifier: MIT
"""Matrices in files. The ending of a file's name says which format it has, and so which module reads and writes it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from hybrid.core.problem import record
from hybrid.core.settings import nearest
from hybrid.core.spans import Span, pieces
from hybrid.errors import UsageError
from hybrid.host.files import allocated, discard, flush_to_disk, journal_of, publish, write_whole
from hybrid.host.threads import rows_of_about

# -------- matrix values
# What every reader of matrices refuses: what is no matrix of numbers, names that are not there, values that do not fit.

NUMBERS = "biufc"  # the kinds of NumPy's types that are numbers
_MOST_NAMES = 8  # the most that an error lists


def refuse_no_matrix(shape: tuple[int, ...] | None, dtype: np.dtype) -> None:
    """UsageError, without the file's name, unless this is the shape and the type of a matrix of numbers."""
    if shape is None or len(shape) != 2:
        raise UsageError(f"does not hold a matrix: its shape is {'unknown' if shape is None else shape}", code="dimensions")
    if dtype.kind not in NUMBERS:
        raise UsageError(f"holds {dtype}: only numbers can be multiplied here", code="no-numbers")


@contextmanager
def refusing_overflow(path: str, dtype: np.dtype) -> Iterator[None]:
    """A context in which values are converted to `dtype`. UsageError for values that it cannot hold."""
    try:
        with np.errstate(over="raise"):
            yield
    except FloatingPointError:
        raise UsageError(f"{path} holds values too large for {dtype}", code="file-values") from None


def listed(names: Sequence[str]) -> str:
    """The names of the matrices in a file, for an error."""
    if not names:
        return "no matrix of numbers"
    more = f" and {len(names) - _MOST_NAMES} others" if len(names) > _MOST_NAMES else ""
    return ", ".join(f"/{name}" for name in names[:_MOST_NAMES]) + more


def meant(name: str, names: Sequence[str]) -> str:
    """The end of an error for a name that is not there: the one that was probably meant, or those that there are."""
    near = nearest(name, names, likeness=0.5)  # g/A of A, too
    return f"did you mean /{near}?" if near else f"it holds {listed(names)}"


def only_one(names: Sequence[str]) -> str:
    """The name of a file's only matrix. UsageError, without the file's name, where there is none, or a choice."""
    if len(names) != 1:
        choice = ": add the name of one, after a colon" if names else ""
        raise UsageError(f"holds {listed(names)}{choice}", code="dataset-missing")
    return names[0]


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
        from hybrid.host.matrix_formats import open_dataset

        return open_dataset(file, inside)
    if form == "zarr":
        from hybrid.host.matrix_formats import open_array

        return open_array(file, inside)
    if form == "mtx":
        from hybrid.host.matrix_formats import MtxFile

        return MtxFile(file, readers)
    from hybrid.host.matrix_formats import NpyFile

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
        from hybrid.host.matrix_formats import Hdf5Output

        return Hdf5Output(file, inside, shape, dtype)
    if form == "zarr":
        from hybrid.host.matrix_formats import ZarrOutput

        return ZarrOutput(file, inside, shape, dtype)
    if form == "mtx":
        from hybrid.host.matrix_formats import MtxOutput

        return MtxOutput(file, shape, dtype)
    from hybrid.host.matrix_formats import NpyOutput

    return NpyOutput(file, shape, dtype)


# -------- matrix output
# What all formats have in common in which a matrix is written: one process begins the file, then several write rows of it.

BYTES_AT_ONCE = 32 << 20  # that one call reads or writes, before progress is told


class MatrixOutput(Protocol):
    """A file, or a folder, that is to hold a matrix."""

    path: str
    size: int  # the bytes that it takes, or a few KiB more

    def refuse(self, size: int) -> None:
        """UsageError where it could not be written, DoesNotFit where it could not with so many bytes: it is found before the
        work, not after it."""

    def begin(self, beside: Path) -> int:
        """Write all but the elements, under a temporary name, in one process. What it returns, the others pass to `write`."""

    def write(self, beside: Path, begun: int, matrix: np.ndarray, rows: Span, told: Callable[[], None]) -> None:
        """Write these rows of the whole `matrix`; other processes may write other rows meanwhile. `told` is called now and
        then."""


class Place(NamedTuple):
    """Some rows of a matrix, which lie in a file one after the other, from byte `at` on."""

    path: Path
    at: int
    rows: Span


class RawRows:
    """A format in which the matrix lies in a file as in memory, row after row, from byte `begun` on; or in several files so."""

    def places(self, beside: Path, begun: int, rows: Span, row_bytes: int) -> Iterator[Place]:
        """The places of these rows in the files."""
        yield Place(beside, begun + rows.lo * row_bytes, rows)

    def make_room(self, beside: Path, begun: int, rows_bytes: int) -> None:
        """Make room for so many bytes of rows, before any of them is written."""
        os.truncate(beside, max(os.path.getsize(beside), begun + rows_bytes))

    def around(self, beside: Path, begun: int, rows_bytes: int) -> Iterator[bytes]:
        """All bytes beside those of the rows."""
        with open(beside, "rb") as file:
            yield file.read(begun)
            file.seek(begun + rows_bytes)
            yield file.read()

    def write(self, beside: Path, begun: int, matrix: np.ndarray, rows: Span, told: Callable[[], None]) -> None:
        for place in self.places(beside, begun, rows, matrix.shape[1] * matrix.itemsize):
            write_rows(place, matrix[place.rows.slice], told)


def write_rows(place: Place, rows: np.ndarray, told: Callable[[], None]) -> None:
    """Write these rows at their place.

    They are not written through a memory map: so a full disk is an error and not a SIGBUS.
    """
    descriptor = os.open(place.path, os.O_WRONLY)
    try:
        data = memoryview(rows.reshape(-1).view(np.uint8).data)
        for part in pieces(Span(0, len(data)), BYTES_AT_ONCE):
            write_whole(descriptor, data[part.slice], place.at + part.lo)
            told()
    finally:
        os.close(descriptor)


def refuse_name(path: str, name: str) -> None:
    """UsageError for a name that no dataset can have in its file."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise UsageError(
            f"{path}:/{name} names no dataset: a name is needed between slashes, and neither . nor ..", code="dataset-missing"
        )
    if not name.isprintable():
        raise UsageError(
            f"{path}:/{name} names no dataset: names in such files are UTF-8, without control characters", code="dataset-missing"
        )


# -------- partial matrix
# The file of a matrix that is written part by part, under a name that a later job finds: <file>.part, with <file>.journal
# beside it.
#
# Each row has its place in the file, so that any rows can be written, and read again to see whether they are what the journal
# says.

_GROUP_BYTES = 4 << 20  # of the rows that have a digest together: by such groups several processes share the rows of a part
_DIGEST_BYTES = 16


@record
class Frame:
    """What the file has beside the rows. `begun`: the byte at which they begin. `digest`: of all bytes before and behind
    them."""

    size: int
    begun: int
    digest: str


class PartialMatrix:
    """The file of `output` while it is written: `height` rows of `row_bytes` bytes each."""

    def __init__(self, output: MatrixOutput, height: int, row_bytes: int) -> None:
        """UsageError for a format in which rows have no place before they are written."""
        if not isinstance(output, RawRows):
            raise UsageError(
                f"{output.path} cannot be written part by part: --resume writes .npy, .h5 and .zarr, "
                "in which rows have their place before they are known (a .mtx file is text)",
                code="file-kind",
            )
        self._output, self._height, self._row_bytes = output, height, row_bytes
        self.target = Path(os.path.realpath(output.path))
        self.part = self.target.with_name(f"{self.target.name}.part")
        self.journal = journal_of(output.path)

    @property
    def name(self) -> str:
        """The file's name for messages, with the name that the user gave."""
        return f"{self._output.path}.part"

    @property
    def size(self) -> int:
        """The bytes that the file takes."""
        return self._output.size

    def refuse(self) -> None:
        """Refuse what the output refuses. What is written already needs no further room."""
        self._output.refuse(max(0, self.size - allocated(self.part)))

    def begin(self) -> Frame:
        """Make a new file without the rows, in place of one that is there."""
        discard(self.part)
        begun = self._output.begin(self.part)
        self._output.make_room(self.part, begun, self._height * self._row_bytes)
        self.flush()
        flush_to_disk(self.part.parent)
        return Frame(_size_of(self.part), begun, self._frame_digest(self.part, begun))

    def is_framed(self, path: Path, frame: Frame) -> bool:
        """Whether the file is there, and has all but the rows as it was written."""
        with suppress(OSError):
            return _size_of(path) == frame.size and self._frame_digest(path, frame.begun) == frame.digest
        return False

    def write(self, frame: Frame, part: Span, c: np.ndarray, groups: Sequence[Span], told: Callable[[], None]) -> None:
        """Write these groups of neighbouring rows of a part of C. `c`: the part, whose row 0 is row `part.lo` of C."""
        if groups:
            for place in self._places(self.part, frame, Span(groups[0].lo, groups[-1].hi)):
                write_rows(place, c[place.rows.within(part).slice], told)

    def _places(self, path: Path, frame: Frame, rows: Span) -> Iterator[Place]:
        return self._output.places(path, frame.begun, rows, self._row_bytes)

    def groups(self, part: Span) -> list[Span]:
        """The groups of rows of a part, each of which has a digest. They are the same whoever writes them, and however many
        do."""
        return list(rows_of_about(_GROUP_BYTES, part, self._row_bytes))

    def flush(self) -> None:
        """Wait until the file is on the disk."""
        for each in (*self.part.rglob("*"), self.part):
            flush_to_disk(each)

    def digests_on_disk(self, path: Path, frame: Frame, groups: Iterable[Span], told: Callable[[], None]) -> list[bytes]:
        """The digests of these groups as the file has them; of a group that it lacks, another one."""
        digests = []
        for group in groups:
            data = np.empty(len(group) * self._row_bytes, np.uint8)
            read = all(_read_into(data, place, group, self._row_bytes) for place in self._places(path, frame, group))
            digests.append(_digest(data) if read else b"")
            told()
        return digests

    def publish(self) -> None:
        """Give the finished file its name."""
        publish(self.part, str(self.target))
        flush_to_disk(self.target.parent)

    def _frame_digest(self, path: Path, begun: int) -> str:
        around = b"".join(self._output.around(path, begun, self._height * self._row_bytes))
        return blake2b(around, digest_size=_DIGEST_BYTES).hexdigest()


def _size_of(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    return sum(each.stat().st_size for each in (path.rglob("*") if path.is_dir() else [path]) if each.is_file())


def _read_into(data: np.ndarray, place: Place, group: Span, row_bytes: int) -> bool:
    """Read the rows at this place into their part of a group's data. Whether all of them are there."""
    rows = place.rows.within(group)
    left = data.data[rows.lo * row_bytes : rows.hi * row_bytes]
    with open(place.path, "rb", buffering=0) as file:
        file.seek(place.at)
        while left and (count := file.readinto(left)):
            left = left[count:]
    return not left


def digests_in_memory(part: Span, c: np.ndarray, groups: Iterable[Span], told: Callable[[], None]) -> list[bytes]:
    """The digests of groups of rows of C. `c`: the part of C to which they belong, contiguous, whose row 0 is row `part.lo`."""
    digests = []
    for group in groups:
        digests.append(_digest(c[group.within(part).slice].reshape(-1).view(np.uint8)))
        told()
    return digests


def joined_digest(digests: Iterable[bytes]) -> str:
    """One digest from those of all groups of a part, in their order."""
    return blake2b(b"".join(digests), digest_size=_DIGEST_BYTES).hexdigest()


def _digest(data: np.ndarray) -> bytes:
    return blake2b(data.data, digest_size=_DIGEST_BYTES).digest()
