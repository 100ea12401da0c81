# SPDX-License-Identifier: MIT
"""Numbers and words for messages and tables."""

from __future__ import annotations

import pytest

from hybrid.core.text import readable


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1023 * 1024, "1023.0 KiB"),
        (2**20 - 1, "1.0 MiB"),  # and not 1024.0 KiB
        (2**30 - 1, "1.0 GiB"),
        (2**40, "1.0 TiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_bytes_are_shown_in_the_unit_that_suits_them(count, shown):
    assert readable(count) == shown
