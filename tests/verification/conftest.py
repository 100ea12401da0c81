# SPDX-License-Identifier: MIT
"""What tests of the check share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hybrid.plan.planning
from hybrid.plan.planning import make_plan


@pytest.fixture
def checked_on_the_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every product, however short memory is."""
    monkeypatch.setattr(hybrid.plan.planning, "_checks_on_device", lambda *_: True)
    make_plan.cache_clear()
    yield
    make_plan.cache_clear()
