# SPDX-License-Identifier: MIT
"""A process's standard streams: open, able to show any text, and patient with a reader that leaves, as `head` does."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

from hybrid.errors import HybridError

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
