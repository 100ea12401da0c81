# SPDX-License-Identifier: MIT
"""One seed for all that is random in a run: the same for each commit, printed in the header and with every failure.

`--seed N` takes another one, as the nightly run does.
"""

import zlib
from typing import Any

import pytest

SEED = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=SEED, help=f"the seed of everything random ({SEED} unless given)")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads its seed
def pytest_configure(config: pytest.Config) -> None:
    from hypothesis import settings

    config.option.hypothesis_seed = str(config.option.seed)
    settings.register_profile("tests", print_blob=True, deadline=None)
    settings.load_profile("tests")


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
