# SPDX-License-Identifier: MIT
"""Warnings that point at the line of the user's program which called this package."""

from __future__ import annotations

import sys
import warnings

_OWN = {__name__.partition(".")[0], "contextlib"}  # whose frames are between: many calls are within a context


def warn(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warn of this, as if the line of the user's program that called this package had issued the warning."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OWN:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
