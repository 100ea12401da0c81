# SPDX-License-Identifier: MIT
"""What the commands' options have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from hybrid import __version__
from hybrid.errors import UsageError
from hybrid.ranks.launcher import rank_by_launcher

_WORDS_OF_COMMAND = 3  # python -m hybrid.matmul


class _Version(argparse.Action):
    """Prints it on rank 0 only."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        if rank_by_launcher() == 0:
            print(f"hybrid-runner {__version__}")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError, suggests the option that was meant, and prints help on rank 0 only."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        if (self.prog or "").count(" ") == _WORDS_OF_COMMAND - 1:  # not what a command's own command takes
            self.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")

    def error(self, message: str) -> NoReturn:
        unknown = [word for word in message.removeprefix("unrecognized arguments: ").split() if word.startswith("--")]
        if message.startswith("unrecognized arguments") and unknown:
            known = [option for action in self._actions for option in action.option_strings]
            import difflib

            near = difflib.get_close_matches(unknown[0].split("=")[0], known, 1, 0.5)
            message = f"unknown option {unknown[0]}" + (f": did you mean {near[0]}?" if near else "; --help lists them")
        raise UsageError(message)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # argparse would replace the text of our error by one that names the conversion function.
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if isinstance(error.__context__, UsageError):
                raise argparse.ArgumentError(action, str(error.__context__)) from None
            raise

    def print_help(self, file: Any = None) -> None:
        if rank_by_launcher() == 0:
            super().print_help(file)


def at_least(least: int) -> Callable[[str], int]:
    """For argparse: the type of a whole number of at least this."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise UsageError(f"{text!r} is not a whole number") from None
        if value < least:
            raise UsageError(f"{text} is too small: at least {least}")
        return value

    return number


def add_job_options(parser: argparse._ActionsContainer) -> None:
    """The options --threads and --stall, which all commands have."""
    threads = "CPU threads a rank (SLURM_CPUS_PER_TASK, OMP_NUM_THREADS, or the cores at hand)"
    stall = "end the job when a rank shows no progress for S seconds (60; 0: never)"
    parser.add_argument("--threads", type=at_least(0), metavar="T", help=threads)
    parser.add_argument("--stall", type=float, metavar="S", help=stall)
