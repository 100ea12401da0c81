# SPDX-License-Identifier: MIT
"""What a user types."""

from collections.abc import Callable
from importlib import import_module

from hybrid.ranks.launcher import end_when_interrupted


def entry(name: str) -> Callable[[], int]:
    """The function that runs a command and returns its exit code."""

    def main() -> int:
        end_when_interrupted(f"hybrid.{name}")
        code: int = import_module(f"hybrid.commands.{name}").main()
        return code

    return main
