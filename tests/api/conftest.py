# SPDX-License-Identifier: MIT
"""What the tests of hybrid.multiply share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, Any]]:
    """The matrices A, B and C that the CPU's kernel gets, call by call."""
    calls = []

    def kernel(a: Any, b: Any, c: Any) -> None:
        calls.append((a, b, c))
        np.matmul(a, b, out=c)

    monkeypatch.setattr("hybrid.devices.cpu.blas", kernel)
    return calls
