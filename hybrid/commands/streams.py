# SPDX-License-Identifier: MIT
"""What a command says beside its result: one line for each message."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from typing import Any

from hybrid.core.private_folder import Elsewhere
from hybrid.core.settings import SWITCHES, foreign_variables, switched_on
from hybrid.ranks.launcher import rank_by_launcher


def say_warnings_in_a_line(name: str) -> None:
    """Those that are meant for the user, from rank 0; others look as Python makes them."""
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
    with suppress(OSError):  # output that cannot be written must not hide the error itself
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, f"{name}: {text}\n".encode(errors="backslashreplace"))  # names of files may be any bytes
