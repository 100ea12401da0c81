# SPDX-License-Identifier: MIT
"""A thread that multiplies beside its rank's."""

from __future__ import annotations

import threading

import pytest

from hybrid.execution.worker import Worker
from hybrid.host.threads import limited_threads, threads_allowed


@pytest.mark.parametrize("beside", [False, True])
def test_it_uses_as_many_threads_as_its_rank_may(beside):
    seen = []
    with limited_threads(3), Worker(beside=beside) as worker:
        worker.do(lambda: seen.append((threading.current_thread() is threading.main_thread(), threads_allowed())))
        worker.wait(lambda: None)
    assert seen == [(not beside, 3)]
