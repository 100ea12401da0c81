# SPDX-License-Identifier: MIT
"""What the lab found in a student's code: a sentence and a code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hybrid.core.problem import record
from hybrid.errors import known, with_code

Place = tuple[str, int]  # a file's name and a line


@record
class Finding:
    """A sentence about something wrong; as text it is this sentence. `code`: what it is, of `hybrid.errors.CODES`."""

    text: str
    code: str
    places: tuple[Place, ...] = ()  # whose lines are to be shown

    def __post_init__(self) -> None:
        known(self.code)

    def __str__(self) -> str:
        return self.text

    @property
    def line(self) -> str:
        """The sentence as it is printed, with its code."""
        return with_code(self.text, self.code)

    def told(self, sources: Mapping[str, Sequence[str]], places: Iterable[Place]) -> Iterator[str]:
        """The sentence as a report has it, and the sources' lines at these places."""
        yield f"  * {self.line}"
        for file, line in places:
            lines = sources.get(file, ())
            if 0 < line <= len(lines):
                yield f"      {line:>4}  {lines[line - 1].strip()}"

    def as_record(self) -> dict[str, str]:
        """Its entry in a JSON line."""
        return {"code": self.code, "text": self.text}
