# SPDX-License-Identifier: MIT
"""Words that every room uses: this file defines nothing. It answers where another package named hybrid looks here for its own
modules."""

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    from hybrid.core.installation import missing

    raise missing(__name__, name)
