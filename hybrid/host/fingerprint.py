# SPDX-License-Identifier: MIT
"""What tells whether a file, or a folder of files, has been changed: its size, the time of its last change, and its
beginning."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from hybrid.errors import UsageError
from hybrid.host.files import code_of_reading

_BEGINNING = 4096  # bytes: the header of most formats


def fingerprint(path: str) -> str:
    """A text for messages that is the same as long as nothing has changed there. UsageError where it cannot be read."""
    target = Path(os.path.realpath(path))
    size, changed, digest = 0, 0, blake2b(digest_size=4)
    try:
        for file in _files(target):
            found = file.stat()
            size, changed = size + found.st_size, max(changed, found.st_mtime_ns)
            if file == target:
                with open(file, "rb") as opened:
                    digest.update(opened.read(_BEGINNING))
            else:
                digest.update(
                    f"{file.relative_to(target)} {found.st_size} {found.st_mtime_ns}\n".encode(errors="surrogateescape")
                )
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", code=code_of_reading(error)) from None
    seconds, nanoseconds = divmod(changed, 10**9)
    return f"{target} ({size} bytes, changed at {seconds}.{nanoseconds:09d}, {digest.hexdigest()})"


def _files(target: Path) -> Iterator[Path]:
    """The file itself, or all files in the folder, in order."""
    return iter(sorted(each for each in target.rglob("*") if each.is_file())) if target.is_dir() else iter((target,))
