# SPDX-License-Identifier: MIT
"""No verdict hangs on a draw that is not seeded: the check's random vectors follow from the test's seed, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _seeded(seed: int) -> Iterator[None]:
    import hybrid.testing

    with hybrid.testing.seed(seed):
        yield
