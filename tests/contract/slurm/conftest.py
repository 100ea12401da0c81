# SPDX-License-Identifier: MIT
"""The tests of a real Slurm (tests/slurm/cluster): collected only where `-m` names the marker `cluster`; one cluster for all."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import ROOT

sys.path.insert(0, str(ROOT / "tests" / "slurm" / "cluster"))
from cluster import Cluster, Job, why_not

OF_CLUSTER = ("test_endings.py", "test_scripts.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if collection_path.name in OF_CLUSTER and "cluster" not in config.option.markexpr else None


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name in OF_CLUSTER:
            item.add_marker(pytest.mark.cluster)
    items.sort(key=lambda item: "overdue" in item.name)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Cluster() as running:
        yield running


@pytest.fixture(scope="session")
def overdue(cluster: Cluster) -> Job:
    """A job that runs into its time limit. Slurm's shortest is a minute, so it starts before all tests; its own comes last."""
    endless = f"{sys.executable} -m hybrid.matmul 32 32 32 --repeat 1000000000 --device cpu --threads 1"
    options = ["--time=1", "--output=overdue-%j.out", f"--wrap=srun --kill-on-bad-exit=1 nice -n 19 {endless}"]
    return Job(cluster, int(cluster.run("sbatch", "--parsable", *options).stdout))


@pytest.fixture(autouse=True)
def starts_before_all(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("cluster"):
        request.getfixturevalue("overdue")
