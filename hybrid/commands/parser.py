# SPDX-License-Identifier: MIT
"""The commands' argument parser: UsageErrors, help on one rank only, and types of options."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from hybrid import __version__
from hybrid.core.settings import OPTIONS, Settings, nearest, one_of, parse_bytes
from hybrid.errors import UsageError
from hybrid.kernels.catalogue import CATALOGUE
from hybrid.ranks.launcher import rank_by_launcher


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError, suggests the option that was meant, and prints help on rank 0 only."""

    def __init__(self, **options: Any) -> None:
        self.offered: dict[str, Sequence[str]] = {}  # by argument: words for shell completion, beside `choices`
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        if (self.prog or "").count(" ") == 2:  # python -m hybrid.matmul, and no subcommand
            version = f"hybrid-runner {__version__}"
            self.add_argument("--version", action="version", version=version, help="show the version and exit")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # the command reports an error of this write; at the interpreter's exit it would be lost
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"unrecognized arguments: (?:[^-]\S* )*(-[^\s=]*)", message):
            option = unknown[1]
            # Another subcommand may have an option of this very name.
            every = (name for part in self.parts() for action in part._actions for name in action.option_strings)
            known = [name for name in dict.fromkeys(every) if name.startswith("--") and name != option]
            near = nearest(option, known, "--")
            remedy = f"did you mean {near}?" if near in known else f"one of {', '.join(known)}"
            if re.fullmatch(r"--?np?\d*", option):
                remedy = f"the launcher takes the number of ranks, as in mpirun -n 4 {self.prog}"
            message = f"unknown option {option}: {remedy}"
        raise UsageError(message, code="option")

    def parts(self) -> Iterator[Parser]:
        """This parser, and those of its subcommands."""
        yield self
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from action.choices.values()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            try:
                one_of(action.dest, str(value), map(str, action.choices))
            except UsageError as error:
                raise _of_argument(action, error) from None

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # argparse would replace the text of our error by one that names the conversion function.
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            raise (_of_argument(action, wrong) if isinstance(wrong := error.__context__, UsageError) else error) from None

    def _print_message(self, message: str, file: Any = None) -> None:
        if rank_by_launcher() == 0:
            super()._print_message(message, file)


def _of_argument(action: argparse.Action, error: UsageError) -> UsageError:
    """The error of a value, with the name of its option."""
    return UsageError(str(argparse.ArgumentError(action, str(error))), code=error.code)


def at_least(least: float, most: float = math.inf) -> Callable[[str], int]:
    """For argparse: a whole number of at least `least`, and at most `most`."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise UsageError(f"{text!r} is not a whole number", code="number") from None
        if least <= value <= most:
            return value
        what = f"too small: at least {least}" if value < least else f"too large: at most {most}"
        raise UsageError(f"{text} is {what}", code="number")

    return number


whole_number = at_least(-math.inf)


def file_name(text: str) -> str:
    """For argparse: the name of a file."""
    if not text:
        raise UsageError("the name of a file is missing", code="option")
    return text


def svg_file(text: str) -> str:
    """For argparse: the name of a picture."""
    if not text.endswith(".svg"):
        raise UsageError(f"{text!r} must end in .svg", code="file-kind")
    return text


def number_of(unit: str) -> Callable[[str], float]:
    """For argparse: a finite number of this unit, 0 or more."""

    def number(text: str) -> float:
        with suppress(ValueError):
            if 0 <= (value := float(text)) < math.inf:
                return value
        raise UsageError(f"{text!r} is not a number of {unit}: 0 or more", code="number")

    return number


_KERNELS = ("auto", "list", *(kernel.name for kernel in CATALOGUE))


def add_settings(parser: argparse._ActionsContainer, *names: str, **helps: str) -> None:
    """Add the options of these settings. `helps`: by setting, help for commands in which it means something else."""
    for name in names:
        told, kind = OPTIONS[name].metadata, type(OPTIONS[name].default)
        types = {int: at_least(told.get("least", 0)), float: number_of("seconds")}
        convert: Any = parse_bytes if name.endswith("_memory") else types.get(kind)
        allowed = _KERNELS if name == "kernel" else told.get("allowed")
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=convert,
            help=helps.get(name, told["help"]),
            metavar=name.upper() if allowed else told.get("metavar"),
            choices=allowed or told.get("choices"),
        )


def settings_of(options: argparse.Namespace, **others: Any) -> Settings:
    """The settings from the options and the environment. `others`: settings that the command decides."""
    return Settings.gather({**{name: getattr(options, name, None) for name in OPTIONS}, **others})
