# SPDX-License-Identifier: MIT
"""A command's output: its text, its JSON lines, and one line for each warning or error.

The standard streams are open, can show any text, and survive a reader that leaves, as `head` does.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from contextlib import suppress
from typing import Any, TextIO

from hybrid.core.installation import Remark
from hybrid.core.settings import SWITCHES, foreign_variables, switched_on
from hybrid.core.text import printable
from hybrid.errors import HybridError
from hybrid.ranks.launcher import rank_by_launcher


def text_stream(json: str | None) -> TextIO:
    """The stream for a command's text: standard error if --json writes to standard output."""
    return sys.stderr if json == "-" else sys.stdout


def file_of_json(json: str | None) -> str | None:
    """The file of --json; None without one, and for standard output."""
    return None if json == "-" else json


def say_warnings_in_a_line(name: str) -> None:
    """From now on, print warnings meant for the user as one line, on rank 0 only, and others as Python does."""
    as_ever = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, Remark):
            as_ever(message, category, *where, **more)
        elif rank_by_launcher() == 0:
            print_line(name, message)

    warnings.showwarning = show


def name_foreign_variables(name: str) -> None:
    """On rank 0, name the environment variables that look like settings and are none. UsageError for a misspelt setting, and for
    a switch that is neither on nor off."""
    for switch in SWITCHES:
        switched_on(switch)
    foreign = foreign_variables()
    if foreign and rank_by_launcher() == 0:
        print_line(name, f"no setting, and ignored: {', '.join(foreign)} in the environment")


def print_line(name: str, text: object) -> None:
    """Print a line to standard error, after the command's name."""
    with suppress(OSError):  # output that cannot be written must not hide the error itself
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, f"{name}: {printable(str(text))}\n".encode())  # names of files may be any bytes


def open_streams() -> None:
    """Replace closed standard streams by /dev/null, and characters that the user's locale lacks by question marks.

    After the reader of a pipe has left, output is discarded: the command still does its work, writes its files, and ends with its
    usual exit code.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a file opened later would get the closed stream's number, and C code's output
    os.close(descriptor)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        if (stream := getattr(sys, name)) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
            raw = getattr(stream.buffer, "raw", stream.buffer)  # python -u has no buffer
            if type(raw) is io.FileIO and raw.fileno() == descriptor:  # Python's own stream, no replacement such as a test's
                stream.flush()
                pipe = _Pipe(descriptor, "w", closefd=False)
                buffer: Any = io.BufferedWriter(pipe) if isinstance(stream.buffer, io.BufferedWriter) else pipe
                same: Any = {each: getattr(stream, each) for each in ("encoding", "errors", "line_buffering", "write_through")}
                setattr(sys, name, io.TextIOWrapper(buffer, newline="\n", **same))


class _Pipe(io.FileIO):
    """A standard stream whose reader may leave."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # the buffered data would fail again, up to the interpreter's exit
            os.close(nowhere)
            if isinstance(error, BrokenPipeError):
                return memoryview(data).nbytes
            raise HybridError(f"standard output cannot be written: {error.strerror}", code="output-lost") from None
