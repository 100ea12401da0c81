# SPDX-License-Identifier: MIT
"""What is said of results, before it is known where: on a terminal, in a Markdown file, or on a page."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hybrid.core.text import aligned
from hybrid.errors import UsageError
from hybrid.host import files


@dataclass(frozen=True)
class Table:
    """Rows of as many cells as there are heads. `sides`: a letter for each column, l or r, where its text stands."""

    heads: Sequence[str]
    sides: str
    rows: Sequence[Sequence[str]]
    title: str = ""

    def __post_init__(self) -> None:
        assert self.rows, f"a table without rows: {self.title}"
        assert {len(row) for row in (self.heads, self.sides, *self.rows)} == {len(self.heads)}, self.title


@dataclass(frozen=True)
class Remarks:
    """Sentences that belong together."""

    lines: Sequence[str]
    title: str = ""


Block = Table | Remarks


def printed(blocks: Iterable[Block]) -> Iterator[str]:
    """For a terminal: aligned columns, an empty line between blocks."""
    for index, block in enumerate(blocks):
        if index:
            yield ""
        if block.title:
            yield block.title
        indent = "  " if block.title else ""
        if isinstance(block, Table):
            lines = aligned([block.heads, *block.rows] if any(block.heads) else block.rows, block.sides)
        else:
            lines = iter(block.lines)
        for line in lines:
            yield indent + line


def markdown(block: Block) -> str:
    """Ends with the end of a line."""
    if isinstance(block, Remarks):
        return "\n".join(f"{line}\n" for line in (*filter(None, [block.title]), *block.lines))
    heading = f"{block.title}:\n\n" if block.title else ""
    rows = [block.heads, ["---:" if side == "r" else "---" for side in block.sides], *block.rows]
    return heading + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def write_between_markers(path: Path, name: str, text: str) -> None:
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


def _markers(name: str) -> tuple[bytes, bytes]:
    return f"<!-- {name} -->\n".encode(), f"<!-- /{name} -->\n".encode()
