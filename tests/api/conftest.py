# SPDX-License-Identifier: MIT
"""What the tests of hybrid.multiply share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybrid.execution.product
import hybrid.execution.root_call
import hybrid.execution.row_block_call
from hybrid.arrays.product_type import numpy_type
from hybrid.errors import UsageError
from hybrid.selection.decision import Decision
from hybrid.verification.check import Check


@pytest.fixture
def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, Any]]:
    """The matrices A, B and C that the CPU's kernel gets, call by call."""
    calls = []

    def kernel(a: Any, b: Any, c: Any) -> None:
        calls.append((a, b, c))
        np.matmul(a, b, out=c)

    monkeypatch.setattr("hybrid.devices.cpu.blas", kernel)
    return calls


@pytest.fixture(params=["float16", "bfloat16"])
def half(request: pytest.FixtureRequest) -> np.dtype:
    """A type of 16 bits."""
    try:
        return numpy_type(request.param)
    except UsageError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> list[Decision]:
    """That of each product, of the root's arrays and of RowBlocks."""
    seen: list[Decision] = []

    def recording(original: Any) -> Any:
        def run(session: Any, decision: Decision, *others: Any) -> Any:
            seen.append(decision)
            return original(session, decision, *others)

        return run

    for module, name in (
        (hybrid.execution.root_call, "run_product"),
        (hybrid.execution.row_block_call, "run_row_block_product"),
    ):
        monkeypatch.setattr(module, name, recording(getattr(module, name)))
    return seen


@pytest.fixture
def device_checks(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """What the check of each product said on the device that multiplied it."""
    seen: list[Check] = []
    original = hybrid.execution.product.RankRun.check

    def check(run: Any, *arguments: Any) -> Check:
        seen.append(original(run, *arguments))
        return seen[-1]

    monkeypatch.setattr(hybrid.execution.product.RankRun, "check", check)
    return seen
