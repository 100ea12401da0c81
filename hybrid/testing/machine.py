# SPDX-License-Identifier: MIT
"""The tests' machine: what it lacks, and settings that change what it looks like."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache, partial

from hybrid.core.processes import launcher_above
from hybrid.core.settings import Settings, one_of
from hybrid.errors import HybridError
from hybrid.ranks.launcher import mpirun


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
    from hybrid.devices.cuda_gpus import usable_gpus
    from hybrid.emulation.build import c_compiler, compiler
    from hybrid.emulation.confined import landlock_version

    if thing == "landlock":
        return "" if landlock_version() else "Landlock: Linux 5.13 or newer, with it turned on"
    if thing == "no launcher above":
        return "a start without mpirun" if launcher_above() != "" else ""
    needed: dict[str, tuple[str, Callable[[], object]]] = {
        "compiler": ("a C++ compiler", compiler),
        "c compiler": ("a C compiler", c_compiler),
        "gpu": ("a GPU", usable_gpus),
        "mpirun": ("mpirun", partial(mpirun, 1)),
    }
    what, find = needed[thing]
    try:
        find()
    except HybridError as refusal:
        return f"{what}: {refusal}"
    return ""
