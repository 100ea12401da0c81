"""Tables that scripts write into Markdown files: what stands between <!-- NAME --> and <!-- /NAME -->."""

from __future__ import annotations

from pathlib import Path

from hybrid.errors import UsageError
from hybrid.host import files


def _markers(name: str) -> tuple[bytes, bytes]:
    return f"<!-- {name} -->\n".encode(), f"<!-- /{name} -->\n".encode()


def rewrite(path: Path, name: str, text: str) -> None:
    """Put the text between the file's markers; all else stays as it is, byte for byte."""
    refuse_without_markers(path, name)
    begin, end = _markers(name)
    head, _, rest = path.read_bytes().partition(begin)
    _, _, tail = rest.partition(end)
    with files.atomic_write(str(path)) as beside:
        beside.write_bytes(head + begin + b"\n" + text.encode() + b"\n" + end + tail)


def refuse_without_markers(path: Path, name: str) -> None:
    """UsageError if there is not just one place to write to."""
    begin, end = _markers(name)
    text = path.read_bytes()
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise UsageError(f"{path} must have one line {begin.decode().strip()} and after it one line {end.decode().strip()}")
