# SPDX-License-Identifier: MIT
"""The catalogue of mutants: small faults, each planted by replacing a text that stands once in a file."""

import hashlib
import json
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """`tests`: pytest's arguments for the tests that should find it; "" for those that cover its lines. `survives`: why no test
    can find it, or none should. `ranks`: on which the tests marked mpi run."""

    file: str
    old: str
    new: str
    what: str
    tests: str = ""
    survives: str = ""
    ranks: tuple[int, ...] = (2, 4)

    @property
    def key(self) -> str:
        """The same as long as nothing of it changes but the reason why it survives."""
        return hashlib.sha256(repr((self.file, self.old, self.new, self.tests)).encode()).hexdigest()[:12]

    @property
    def room(self) -> str:
        """The package below hybrid, or the folder of another file."""
        parts = Path(self.file).parts
        return parts[1] if parts[0] == "hybrid" and len(parts) > 2 else parts[0]

    def planted(self, text: str) -> str | None:
        """The file's text with the fault; None where the text that it changes is not there once."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None

    def line(self, text: str) -> int:
        """The number of the first line that it changes."""
        same = next((at for at, (old, new) in enumerate(zip(self.old, self.new, strict=False)) if old != new), 0)
        return text.count("\n", 0, text.index(self.old) + same) + 1


def catalogue(folder: Path, only: str = "*") -> list[Mutant]:
    """Those of all files, or of the files and rooms that match."""
    mutants = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                given = json.loads(line)
                mutant = Mutant(**{**given, "ranks": tuple(given.get("ranks", Mutant.ranks))})
            except (TypeError, ValueError) as wrong:
                raise LookupError(f"{path.name}, line {number}: {wrong}") from None
            if any(fnmatch(name, only) for name in (path.name, path.stem, mutant.room, mutant.file, mutant.key)):
                mutants.append(mutant)
    return list({mutant.key: mutant for mutant in mutants}.values())
