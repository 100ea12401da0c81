# SPDX-License-Identifier: MIT
"""Warnings point at the user's line."""

from __future__ import annotations

import types
import warnings

from hybrid.core.caller import warn


def test_a_warning_points_at_the_first_line_outside_of_the_package():
    inside = types.ModuleType("hybrid.somewhere.deep")
    text = (
        "from contextlib import contextmanager\n"
        "def inner(warn): warn('late')\n"
        "@contextmanager\ndef context(warn):\n    inner(warn)\n    yield\n"
        "def outer(warn):\n    with context(warn): inner(warn)"
    )
    exec(text, inside.__dict__)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inside.outer(warn)
    assert [(str(one.message), one.category, one.filename) for one in caught] == 2 * [("late", RuntimeWarning, __file__)]
