"""Files that appear whole or not at all: written beside their place, then renamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hybrid.errors import UsageError


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
    """A new name in the folder of the file that `path` leads to."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")


def publish(beside: Path, path: str) -> None:
    """Give a finished file its name, once it is safely on the disk. Links to it stay."""
    with open(beside, "rb") as written:
        os.fsync(written.fileno())
    os.replace(beside, os.path.realpath(path))


def discard(beside: Path) -> None:
    with suppress(FileNotFoundError):
        beside.unlink()


def refuse_unwritable(path: str) -> None:
    """Raise UsageError now if a file could not be made at `path` later."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise UsageError(f"{path} is not a regular file")
    if not target.parent.is_dir():
        raise UsageError(f"there is no folder {target.parent} for {path}")
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"no files can be made in {target.parent}")


def refuse_same(paths: Mapping[str, str | None], may_replace: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageError if two options name the same file, but for the pairs in `may_replace`."""
    seen: dict[str, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        place = os.path.realpath(path)
        other = seen.setdefault(place, option)
        if other != option and option not in may_replace.get(other, ()) and {option, other} != {"--a", "--b"}:
            raise UsageError(f"{other} and {option} name the same file, {path}")


def write_whole(descriptor: int, data: bytes | memoryview, at: int) -> None:
    """Write all of `data` at an offset, also where the system takes it in parts."""
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, at)
        at, left = at + written, left[written:]
