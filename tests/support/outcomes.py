# SPDX-License-Identifier: MIT
"""What became of each test, in a file that several runs add to; as a program, what none of them has tested, by reason.

python tests/support/outcomes.py FILE
"""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", help="add a line for each test: name, outcome, reason")


def pytest_configure(config: pytest.Config) -> None:
    if not _worker(config) and _rank() == 0:
        config.pluginmanager.register(_Recorder(config))


class _Recorder:
    """Hears of the tests of all workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            _add(self._config, report.nodeid, "skipped", report.longrepr[2].removeprefix("Skipped: "))
        elif report.when == "call" or report.failed:
            _add(self._config, report.nodeid, report.outcome, "")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            _add(self._config, report.nodeid, "skipped", report.longrepr[2].removeprefix("Skipped: "))


def _worker(config: pytest.Config) -> str:
    return getattr(config, "workerinput", {}).get("workerid", "")


def _rank() -> int:
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return int(next((os.environ[name] for name in names if name in os.environ), "0"))


def _add(config: pytest.Config, name: str, outcome: str, reason: str) -> None:
    if config.option.outcomes and _rank() == 0:
        with Path(config.option.outcomes).open("a") as file:
            file.write(f"{name}\t{outcome}\t{' '.join(reason.split())}\n")


def untested(lines: list[str]) -> Counter[str]:
    """How many tests none of the runs has run, by the last reason given."""
    outcomes: dict[str, dict[str, str]] = {}
    for line in lines:
        name, outcome, reason = line.rstrip("\n").split("\t")
        outcomes.setdefault(name, {})[outcome] = reason
    missed = (seen for seen in outcomes.values() if not {"passed", "failed"} & set(seen))
    return Counter(list(seen.values())[-1] for seen in missed)


def main() -> None:
    counts = untested(Path(sys.argv[1]).read_text().splitlines())
    if counts:
        print("not tested:")
        for reason, count in counts.most_common():
            print(f"{count:6}  {reason}")


if __name__ == "__main__":
    main()
