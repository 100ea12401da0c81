# SPDX-License-Identifier: MIT
"""Warnings point at the user's line."""

from __future__ import annotations

import types
import warnings

from hybrid.core.caller import warn


def test_a_warning_points_at_the_first_line_outside_of_the_package():
    inside = types.ModuleType("hybrid.somewhere.deep")
    exec("def inner(warn): warn('late')\ndef outer(warn): inner(warn)", inside.__dict__)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inside.outer(warn)
    assert [(str(one.message), one.category, one.filename) for one in caught] == [("late", RuntimeWarning, __file__)]
