# SPDX-License-Identifier: MIT
"""One seed for all that is random in a run: printed in the header and with every failure, given by --seed."""

from __future__ import annotations

import secrets
import zlib
from typing import Any

import pytest
from support.ranks import world


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="the seed of everything random: repeats the run that printed it")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its seed
def pytest_configure(config: pytest.Config) -> None:
    from hypothesis import settings

    if config.option.seed is None:
        config.option.seed = getattr(config, "workerinput", {}).get("seed", secrets.randbelow(1 << 32))
    config.option.hypothesis_seed = str(config.option.seed)
    settings.register_profile("tests", print_blob=True, deadline=None)
    settings.load_profile("tests")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist's workers get the seed of the process that started them."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_sessionstart(session: pytest.Session) -> None:
    """The root's seed on all ranks. Not sooner: where MPI starts before pytest is configured, it fails in a job of Slurm."""
    from hypothesis import core

    comm = world(session.config)
    if comm is not None:
        core.global_force_seed = session.config.option.seed = comm.bcast(session.config.option.seed)


def pytest_report_header(config: pytest.Config) -> str:
    return f"random: --seed {config.option.seed}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        report.sections.append(("random", f"--seed {item.config.option.seed}"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number of this test's own, the same on all ranks: it follows from --seed and the test's name alone."""
    return zlib.crc32(f"{request.config.option.seed} {request.node.nodeid}".encode())


@pytest.fixture
def rng(seed: int) -> Any:
    """Random numbers, the same on all ranks."""
    import numpy as np

    return np.random.default_rng(seed)
