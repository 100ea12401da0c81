# SPDX-License-Identifier: MIT
"""The failures that a user can act on. Each message is one line: what is wrong, where, and what to do."""

from __future__ import annotations


class HybridError(Exception):
    """Base class of all failures of which the message is meant for the user.

    Attributes
    ----------
    exit_code : int
        With which a command ends.
    on_all_ranks : bool
        Whether every rank raises this error, so that none waits for another.
    """

    exit_code = 1
    on_all_ranks = False


class UsageError(HybridError, ValueError):
    """An option, argument, size or type that makes no sense, or that differs between the ranks. Exit code 2."""

    exit_code = 2


class NoArray(UsageError, TypeError):
    """A part of a distributed matrix was passed where NumPy wants an array."""


class CheckFailed(HybridError, ArithmeticError):
    """C is not A·B, or a matrix was changed on its way to another rank. Exit code 3."""

    exit_code = 3


class Overflow(HybridError, OverflowError):
    """An element of an integer product is beyond what the result's type holds. It is never wrapped."""


class DoesNotFit(HybridError, MemoryError):
    """More host, node-shared or GPU memory would be needed than there is."""


class DeviceUnavailable(HybridError, RuntimeError):
    """Some rank cannot use the device that was asked for."""


class StartError(HybridError, RuntimeError):
    """MPI did not start, or does not see all processes that the launcher started. `remedy`: what to do, if it is known."""

    def __init__(self, what: str = "", remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what, self.remedy = what, remedy


class RankFailed(HybridError, RuntimeError):
    """One rank raised an exception that is no HybridError; every rank raises this one, which quotes it."""


class RankMissing(HybridError, RuntimeError):
    """Not every rank of the communicator has called. The communicator cannot be used for another call."""


_KINDS = (HybridError, UsageError, NoArray, CheckFailed, Overflow, DoesNotFit, DeviceUnavailable, StartError)
_BY_NAME = {kind.__name__: kind for kind in _KINDS}


def one_line(error: BaseException) -> str:
    """The error's message on one line; with the name of its class, except for errors whose message needs none."""
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
    """The error of class `kind` that another rank raised; RankFailed for classes that are not of this module."""
    return _BY_NAME.get(kind, RankFailed)(text)
