# SPDX-License-Identifier: MIT
"""Where a command writes what it says: its text, its JSON lines, and one line for each warning or error.

The standard streams are open, able to show any text, and patient with a reader that leaves, as `head` does.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from hybrid.core.installation import Remark
from hybrid.core.settings import SWITCHES, foreign_variables, switched_on
from hybrid.core.text import printable
from hybrid.errors import HybridError
from hybrid.ranks.launcher import rank_by_launcher


def text_stream(json: str | None) -> TextIO:
    """Where a command's text goes: to standard error if its JSON line, as --json says, goes to standard output."""
    return sys.stderr if json == "-" else sys.stdout


def file_of_json(json: str | None) -> str | None:
    """The file of --json; None where there is none, or for standard output."""
    return None if json == "-" else json


def say_warnings_in_a_line(name: str) -> None:
    """From now on, print warnings that are meant for the user as one line, from rank 0 only; others as Python prints them."""
    as_ever = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, Remark):
            as_ever(message, category, *where, **more)
        elif rank_by_launcher() == 0:
            print_line(name, message)

    warnings.showwarning = show


def name_foreign_variables(name: str) -> None:
    """Rank 0 says which variables look like settings and are none. UsageError where a setting was meant, and for a switch of the
    commands that is neither on nor off."""
    for switch in SWITCHES:
        switched_on(switch)
    foreign = foreign_variables()
    if foreign and rank_by_launcher() == 0:
        print_line(name, f"no setting, and ignored: {', '.join(foreign)} in the environment")


def print_line(name: str, text: object) -> None:
    """Print a line, which begins with the command's name, to standard error."""
    with suppress(OSError):  # output that cannot be written must not hide the error itself
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, f"{name}: {printable(str(text))}\n".encode())  # names of files may be any bytes


_DESCRIPTORS = {"stdout": 1, "stderr": 2}


def open_streams() -> None:
    """Replace closed standard streams by /dev/null, and characters that the user's locale lacks by question marks.

    What is written after the reader of a pipe has left goes nowhere: the command still does its work, writes its files, and ends
    with the exit code of that.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a file opened later would get the number of the closed stream, and what C code prints would go there
    os.close(descriptor)
    for name, descriptor in _DESCRIPTORS.items():
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
            if _writes_to(stream, descriptor):
                setattr(sys, name, _outliving_its_reader(stream, descriptor))


class _Pipe(io.FileIO):
    """A standard stream whose reader may leave."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            self._end_in_nowhere()
            return memoryview(data).nbytes
        except OSError as error:
            self._end_in_nowhere()  # what is kept to be written once more would fail again, until the interpreter ends
            raise HybridError(f"standard output cannot be written: {error.strerror}", code="output-lost") from None

    def _end_in_nowhere(self) -> None:
        """Have all that is written from now on go to /dev/null."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def _writes_to(stream: io.TextIOWrapper, descriptor: int) -> bool:
    """Whether the stream is the one that Python has opened for the process, and not another one, such as a test's."""
    raw = getattr(stream.buffer, "raw", stream.buffer)  # with python -u there is no buffer between
    return type(raw) is io.FileIO and raw.fileno() == descriptor


def _outliving_its_reader(stream: io.TextIOWrapper, descriptor: int) -> io.TextIOWrapper:
    """The same stream, whose reader may leave. What it had still to write is written."""
    stream.flush()
    raw = _Pipe(descriptor, "w", closefd=False)
    # Unbuffered (python -u) is a writer without one, as Python's own is.
    buffer: Any = io.BufferedWriter(raw) if isinstance(stream.buffer, io.BufferedWriter) else raw
    return io.TextIOWrapper(
        buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
