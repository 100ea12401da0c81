"""The failures a user can act on. Each is one line: what is wrong, where, and what to do."""

from __future__ import annotations


class HybridError(Exception):
    """A failure with a message for the user; a command ends with `exit_code`."""

    exit_code = 1
    on_all_ranks = False  # every rank raises it now


class UsageError(HybridError, ValueError):
    """The arguments, sizes or types asked for make no sense."""

    exit_code = 2


class CheckFailed(HybridError, ArithmeticError):
    """The product is not A·B."""

    exit_code = 3


class DoesNotFit(HybridError, MemoryError):
    """Something needs more memory than there is; refused before anything was allocated."""


class DeviceUnavailable(HybridError, RuntimeError):
    """The device asked for cannot be used on some rank."""


class StartError(HybridError, RuntimeError):
    """The ranks were not started together."""


class RankFailed(HybridError, RuntimeError):
    """Something unexpected happened on one rank; every rank raises this."""


_BY_NAME = {kind.__name__: kind for kind in (HybridError, UsageError, CheckFailed, DoesNotFit, DeviceUnavailable, StartError)}


def one_line(error: BaseException) -> str:
    """What happened, on one line; with the class name where the text alone would not tell."""
    text = " ".join(str(error).split())
    if isinstance(error, HybridError):
        return text
    if isinstance(error, SystemExit):
        return f"left by sys.exit({error.code})"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    name = "out of memory" if type(error) is MemoryError else type(error).__name__
    return f"{name}: {text}" if text else name


def rebuild(kind: str, text: str) -> HybridError:
    """The error another rank raised; anything but this project's own kinds becomes RankFailed."""
    return _BY_NAME.get(kind, RankFailed)(text)
