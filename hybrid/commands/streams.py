# SPDX-License-Identifier: MIT
"""Where a command writes what it says: its text, its JSON lines, and one line for each warning or error."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from typing import Any, TextIO

from hybrid.core.private_folder import Elsewhere
from hybrid.core.settings import SWITCHES, foreign_variables, switched_on
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
        if not issubclass(category, Elsewhere):
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
        os.write(2, f"{name}: {text}\n".encode(errors="backslashreplace"))  # names of files may be any bytes
