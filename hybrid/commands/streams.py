# SPDX-License-Identifier: MIT
"""A command's standard streams: open and able to show any text, and one line for each message."""

from __future__ import annotations

import io
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from hybrid.core.private_folder import Elsewhere
from hybrid.ranks.launcher import rank_by_launcher


def open_streams() -> None:
    """Replace closed standard streams by /dev/null, and characters that the user's locale lacks by question marks."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a file opened later would get the number of the closed stream, and what C code prints would go there
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say_warnings_in_a_line(name: str) -> None:
    """Those that are meant for the user, from rank 0; others look as Python makes them."""
    as_ever = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, Elsewhere):
            as_ever(message, category, *where, **more)
        elif rank_by_launcher() == 0:
            print_line(name, message)

    warnings.showwarning = show


def print_line(name: str, text: object) -> None:
    with suppress(OSError):  # output that cannot be written must not hide the error itself
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, f"{name}: {text}\n".encode())
