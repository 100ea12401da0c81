# SPDX-License-Identifier: MIT
"""Matrices in Zarr stores that are folders, by zarr-python 3: they are read by rectangles, and written by several ranks in whole
chunks."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.core.installation import install
from hybrid.core.spans import Span
from hybrid.errors import UsageError, one_line
from hybrid.host.chunked_matrix import ChunkedMatrix
from hybrid.host.files import refuse_unwritable
from hybrid.host.matrix_output import BYTES_AT_ONCE, Place, RawRows, refuse_name
from hybrid.host.matrix_values import NUMBERS, meant, only_one

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
        names = _matrices(zarr, _node(zarr, path, ""))
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


def _matrices(zarr: Any, group: Any) -> list[str]:
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
