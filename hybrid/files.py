"""Files that appear whole or not at all: written beside their place, then renamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def appearing(path: str) -> Iterator[Path]:
    """A path beside `path` to write to; renamed to `path` when the body ends well, removed when it does not."""
    beside = name_beside(path)
    try:
        yield beside
        publish(beside, path)
    except BaseException:
        discard(beside)
        raise


def name_beside(path: str) -> Path:
    """A new name in the folder of `path`."""
    target = Path(path).absolute()
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def publish(beside: Path, path: str) -> None:
    """Give a finished file its name, once it is safely on the disk."""
    with open(beside, "rb") as written:
        os.fsync(written.fileno())
    os.replace(beside, path)


def discard(beside: Path) -> None:
    with suppress(FileNotFoundError):
        beside.unlink()


def refuse_unwritable(path: str) -> None:
    """Raise OSError now if a file could not be made at `path` later."""
    folder = Path(path).absolute().parent
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} for {path}")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"no files can be made in {folder}")
