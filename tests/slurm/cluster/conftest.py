# SPDX-License-Identifier: MIT
"""The tests of a real Slurm: collected only where `-m` names the marker `cluster`, and with one cluster for all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cluster import Cluster, why_not
from jobs import Job


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if "cluster" in config.option.markexpr else True


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.cluster)
    items.sort(key=lambda item: "overdue" in item.name)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Cluster() as running:
        yield running


@pytest.fixture(scope="session", autouse=True)
def overdue(cluster: Cluster) -> Job:
    """A job that runs into its time limit. Slurm's shortest is a minute, so it starts before all tests; its own comes last."""
    endless = f"{sys.executable} -m hybrid.matmul 32 32 32 --repeat 1000000000 --device cpu --threads 1"
    options = ["--time=1", "--output=overdue-%j.out", f"--wrap=srun --kill-on-bad-exit=1 nice -n 19 {endless}"]
    return Job(cluster, int(cluster.run("sbatch", "--parsable", *options).stdout))
