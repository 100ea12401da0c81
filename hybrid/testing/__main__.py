# SPDX-License-Identifier: MIT
"""`python -m hybrid.testing OPTIONS -m hybrid.matmul ARGUMENTS`: a command, or a program, with faults planted."""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hybrid.errors import UsageError
from hybrid.ranks.launcher import rank_by_launcher
from hybrid.testing import Planted, plant, pretend, seed

_NUMBERS = ("rank", "at", "times")


def main() -> int:
    """Plant the faults, then run the command or program as if started by itself."""
    parser = argparse.ArgumentParser(
        "python -m hybrid.testing",
        description="Run a command or a program with faults planted, settings pretended or the check's random numbers fixed.",
        epilog="--plant takes the arguments of hybrid.testing.plant, as in 'arrive rank=1 at=2 how=rows swapped'. A function is "
        "named with its file, as in how=faults.py:spoil.",
        allow_abbrev=False,
    )
    parser.add_argument("--plant", action="append", default=[], metavar="FAULT", help="KIND name=value name=value ...")
    parser.add_argument("--seed", type=int, help="of the check's random vectors")
    parser.add_argument("--pretend", action="append", default=[], metavar="NAME=VALUE", help="a setting, such as staged=1")
    parser.add_argument("--gpus", type=int, default=0, help="number of fake GPUs, made of NumPy and the emulated GPU")
    parser.add_argument("--report", type=Path, help="append a line of JSON to this file when a fault has changed something")
    parser.add_argument("-m", dest="module", action="store_true", help="the command is a module, not a file")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a file or module, and its arguments")
    options = parser.parse_args()
    if not options.command:
        parser.error("a file or -m MODULE is needed")
    with ExitStack() as stack:
        try:
            stack.enter_context(pretend(**dict(map(_pair, options.pretend))))
            if options.gpus:
                from hybrid.testing import numpy_cupy

                numpy_cupy.install(options.gpus)
            if options.seed is not None:
                stack.enter_context(seed(options.seed))
            for fault in options.plant:
                planted = stack.enter_context(plant(**parsed(fault)))
                if options.report:
                    planted.told = _reporting(options.report.absolute(), fault)
        except (ValueError, TypeError, UsageError) as wrong:
            parser.error(str(wrong))
        _run(options.command, options.module)
    return 0


def parsed(fault: str) -> dict[str, Any]:
    """The arguments of `plant` from a text `KIND name=value ...`, whose values may contain spaces."""
    kind, *pairs = re.split(r"\s+(\w+)=", fault.strip())
    given: dict[str, Any] = dict(zip(pairs[::2], pairs[1::2], strict=True))
    for name in _NUMBERS:
        if name in given:
            given[name] = None if given[name] == "None" else int(given[name])
    how = given.get("how", "")
    if ".py:" in how:
        path, _, function = how.rpartition(":")
        given["how"] = runpy.run_path(path)[function]
    return {"kind": kind, **given}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--pretend takes name=value, not {text!r}")
    return name, value


def _reporting(path: Path, fault: str) -> Callable[[Planted], None]:
    def report(planted: Planted) -> None:
        line = json.dumps({"fault": fault, "rank": rank_by_launcher(), "pid": os.getpid()}) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(descriptor, line.encode())  # one write, so that the lines of ranks do not mix
        os.close(descriptor)

    return report


def _run(command: list[str], is_module: bool) -> None:
    sys.argv = command
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(command[0]).resolve().parent)
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    sys.exit(main())
