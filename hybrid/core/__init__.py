# SPDX-License-Identifier: MIT
"""Words that every room uses. Empty but for what is said where another package named hybrid looks for its own here."""

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    from hybrid.core.installation import missing

    raise missing(__name__, name)
