# SPDX-License-Identifier: MIT
"""`start(arguments, ranks, …)`: a job (support/jobs.py) of this test, of which nothing stays when the test has failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import Job, Start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    jobs = []

    def one(arguments, ranks=0, **more):
        jobs.append(Job(arguments, ranks, folder=tmp_path, **more))
        return jobs[-1]

    yield one
    for job in jobs:
        job.discard()
