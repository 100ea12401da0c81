# SPDX-License-Identifier: MIT
"""Files that commands write and read: what is refused before one is written, and bytes that are written and read whole."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from hybrid.core.text import readable
from hybrid.errors import DoesNotFit, UsageError
from hybrid.host.files import largest_file, led_to
from hybrid.host.memory import free_bytes_in


def refuse_unwritable(path: str, size: int | None = None, *, folder: bool = False) -> None:
    """UsageError if no file could be written at `path`, DoesNotFit if none of `size` bytes: it is found before the work, not
    after it.

    `size`: None for a few bytes, whose number is not known. `folder`: a folder of many files is to be written.
    """
    target = Path(led_to(path))
    try:
        if target.exists() and not target.is_file() and not folder:
            raise UsageError(f"{path} is not a regular file", code="file-unwritable")
        if not target.parent.is_dir():
            raise UsageError(f"there is no folder {target.parent} for {path}", code="file-missing")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {os.strerror(error.errno or 0)}", code="file-unwritable") from None
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"no files can be written in {target.parent}", code="file-unwritable")
    free, limit = free_bytes_in(target.parent), largest_file()
    if size is None:
        if not free:
            raise DoesNotFit(f"there is no room for {path}: 0 B are free in {target.parent}", code="disk-full")
        size = 0
    if size > free:
        raise DoesNotFit(
            f"{path} takes {readable(size)}, {readable(free)} are free in {target.parent}: {readable(size - free)} are missing",
            code="disk-full",
        )
    if limit is not None and size > limit and not folder:
        raise DoesNotFit(
            f"{path} takes {readable(size)}, files may have {readable(limit)} at most: ulimit -f unlimited", code="file-limit"
        )


def refuse_same(paths: Mapping[str, str | None], may_replace: Mapping[str, Sequence[str]]) -> None:
    """UsageError if two options name the same file, unless `may_replace[one]` lists the other. The operands --a and --b may be
    the same."""
    seen: dict[str, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        other = seen.setdefault(led_to(path), option)
        if other != option and option not in may_replace.get(other, ()) and {option, other} != {"--a", "--b"}:
            raise UsageError(f"{other} and {option} name the same file, {path}", code="same-file")


def code_of_reading(error: OSError) -> str:
    """The code of the failure to open or read a file."""
    return "file-missing" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else "file-unreadable"


def write_whole(descriptor: int, data: bytes | memoryview, at: int) -> None:
    """Write all of `data` at offset `at`, also where pwrite takes it in parts."""
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, at)
        at, left = at + written, left[written:]


def read_whole(descriptor: int, into: memoryview, at: int) -> int:
    """Fill `into` from offset `at` on. Returns the bytes that are missing, where the file ends before."""
    while into and (count := os.preadv(descriptor, [into], at)):
        at, into = at + count, into[count:]
    return len(into)
