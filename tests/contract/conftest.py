# SPDX-License-Identifier: MIT
"""What the tests of jobs and of the check may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import Job, Start


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(arguments, ranks, …)`: a job (support/jobs.py) of this test, of which nothing stays when the test has failed."""
    jobs = []

    def one(arguments, ranks=0, **more):
        jobs.append(Job(arguments, ranks, folder=tmp_path, **more))
        return jobs[-1]

    yield one
    for job in jobs:
        job.discard()


@pytest.fixture(autouse=True)
def _check_is_seeded(request: pytest.FixtureRequest, seed: int) -> Iterator[None]:
    """In tests/contract/check no verdict hangs on a draw that is not seeded: random vectors follow from the test's seed, too."""
    if request.path.parent.name != "check":
        yield
        return
    import hybrid.testing

    with hybrid.testing.seed(seed):
        yield
