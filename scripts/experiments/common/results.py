# SPDX-License-Identifier: MIT
"""What an experiment makes of its recorded lines: the base of every experiment's `Results`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import ClassVar

from experiments.common.records import END, Line
from experiments.common.tables import Block, markdown, printed
from hybrid.errors import UsageError
from hybrid.reporting import jsonl


class Results:
    """The lines to be shown, the last of them measured last. Subclasses say them as tables and draw them."""

    command: ClassVar[str]  # the script's name, and what its lines have as `command`
    again: ClassVar[str] = ""  # what starts it, where that is not scripts/COMMAND.py
    more_arguments: ClassVar[str] = ""  # with which the script measures all that a report shows

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines

    @classmethod
    def selected(cls, lines: Sequence[Line]) -> list[Line]:
        """Of the script's lines those of the last run that came to its end; empty where none did."""
        ended = [line.get("run") for line in lines if line.get("part") == END]
        return [line for line in lines if ended and line.get("run") == ended[-1] and line.get("part") != END]

    @classmethod
    def recorded(cls, path: str) -> list[Line]:
        """The selected lines of a file. UsageError when there is none."""
        lines = [line for line in jsonl.read(path) if line.get("command") == cls.command]
        if not lines:
            raise UsageError(f"{path} has no lines of {cls.started_with()}")
        if not (selected := cls.selected(lines)):
            raise UsageError(f"{path} has no run of {cls.started_with()} that came to its end")
        return selected

    @classmethod
    def each(cls, lines: Sequence[Line]) -> Iterator[Results]:
        """Of all lines what is shown together, with one picture."""
        if selected := cls.selected(lines):
            yield cls(selected)

    def blocks(self) -> Iterator[Block]:
        """Its tables and remarks; none by default."""
        return iter(())

    def on_page(self) -> Iterator[Block]:
        """Of `blocks` those that --write puts on a page."""
        return self.blocks()

    def draw(self, path: str) -> None:
        """A picture; UsageError where there is none, or nothing was measured that it shows."""
        raise UsageError(f"{self.started_with()} has no picture for {path}")

    def has_picture(self) -> bool:
        return True

    def exit_code(self) -> int:
        """Of the script, where nothing failed."""
        return 0

    def printed(self) -> Iterator[str]:
        """For a terminal."""
        yield self.caption()
        yield from printed(self.blocks())

    @property
    def of_gpu(self) -> bool:
        """Else times say nothing of a GPU."""
        return self.lines[-1]["device"] == "cuda"

    @staticmethod
    def machine_of(line: Line) -> str:
        """The processor too: some times are its own, and those of whole programs depend on it."""
        processor = f"{line['machine']['processor']}, {line['machine']['cores']} cores"
        if line.get("gpu"):
            return f"{line['gpu']}, {processor}"
        return f"{processor}, no GPU" if "gpu" in line else processor

    def machine(self) -> str:
        return self.machine_of(self.lines[-1])

    def dates(self) -> str:
        return ", ".join(dict.fromkeys(line["date"][:10] for line in self.lines))

    def caption(self) -> str:
        return f"{self.machine()}; {self.dates()}"

    @classmethod
    def started_with(cls) -> str:
        return cls.again or f"python scripts/{cls.command}.py"

    @classmethod
    def started_by(cls, line: Line) -> str:
        """The command that gives such lines again."""
        return shlex.join([*cls.started_with().split(), *line["arguments"]])

    def started(self) -> list[str]:
        return list(dict.fromkeys(map(self.started_by, self.lines)))

    about_picture: ClassVar[str]

    def markdown(self, picture: str = "") -> str:
        """The tables, and where the numbers come from, with the commands of the runs. `picture`: a path to show above them."""
        parts = [f"![{self.about_picture}]({picture})\n"] if picture else []
        runs = dict.fromkeys((line["date"][:10], self.started_by(line)) for line in self.lines if line.get("seconds"))
        origin = "; ".join(f"{date}, `{command}`" for date, command in runs)
        return "\n".join(
            [*parts, *map(markdown, self.on_page() if picture else self.blocks()), f"Measured on {self.software()}; {origin}\n"]
        )

    def software(self) -> str:
        """Machine and versions."""
        return self.machine()


class MachineResults(Results):
    """Of lines that runs add to, one after the other: all that were measured on the machine of the last one."""

    @classmethod
    def selected(cls, lines: Sequence[Line]) -> list[Line]:
        measured = [line for line in lines if line.get("part") != END]
        return [line for line in measured if cls.machine_of(line) == cls.machine_of(measured[-1])]
