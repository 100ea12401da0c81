# SPDX-License-Identifier: MIT
"""The tests' machine: what it lacks, and settings that change what it looks like."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache

from hybrid.core.processes import launcher_above
from hybrid.core.settings import Settings, one_of
from hybrid.errors import HybridError


@contextmanager
def pretend(**settings: object) -> Iterator[None]:
    """Set settings by their environment variables ``HYBRID_*``, and restore these at the end of the context.

    Parameters
    ----------
    **settings
        By name, as ``ranks_per_node=1``, ``host_memory="1M"``, ``gpu_memory="200k"``, ``staged=True`` or ``panel_rows=13``. None
        unsets a setting. They apply to all later reads, also of commands started in the context.

    Raises
    ------
    hybrid.errors.UsageError
        There is no such setting, or its value is invalid.
    """
    known = [setting.name for setting in fields(Settings)]
    texts = {
        name: value if value is None else str(int(value) if isinstance(value, bool) else value)
        for name, value in settings.items()
    }
    wanted = {f"HYBRID_{one_of('setting', name, known).upper()}": text for name, text in texts.items()}
    before = {name: os.environ.get(name) for name in wanted}
    try:
        _set(wanted)
        Settings.gather({})
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _refused(module: str, function: str, what: str, *given: object, why: bool = False) -> str:
    """What is lacking (and why) if this function of the package raises HybridError; else empty."""
    try:
        getattr(importlib.import_module(f"hybrid.{module}"), function)(*given)
    except HybridError as refusal:
        return f"{what}: {refusal}" if why else what
    return ""


def _landlock() -> str:
    from hybrid.emulation.confined import landlock_version

    return "" if landlock_version() else "Landlock: Linux 5.13 or newer, with it turned on"


_LACKING: dict[str, Callable[[], str]] = {
    "compiler": lambda: _refused("emulation.build", "compiler", "a C++ compiler"),
    "c compiler": lambda: _refused("emulation.build", "c_compiler", "a C compiler"),
    "gpu": lambda: _refused("devices.cuda_gpus", "usable_gpus", "a GPU", why=True),
    "mpirun": lambda: _refused("ranks.launcher", "mpirun", "mpirun", 1, why=True),
    "landlock": _landlock,
    "no launcher above": lambda: "a start without mpirun" if launcher_above() != "" else "",
}


@cache
def lacking(thing: str) -> str:
    """What this machine lacks to test something, in words; empty if it lacks nothing.

    Parameters
    ----------
    thing
        ``"compiler"`` (of C++), ``"c compiler"``, ``"gpu"``, ``"mpirun"``, ``"landlock"`` or ``"no launcher above"``.

    Raises
    ------
    KeyError
        There is no test for such a thing.
    """
    return _LACKING[thing]()
