# SPDX-License-Identifier: MIT
"""Marks of the peers' own test suites."""

from support.peers import ROWS, ledger  # noqa: F401 (a fixture)


def pytest_configure(config):
    for name in ("thread_unsafe", "parallel_threads", "fail_slow", "slow", "leaks_references", "valgrind_error"):
        config.addinivalue_line("markers", f"{name}: of a peer's tests")


def pytest_terminal_summary(terminalreporter, config):
    for row in config.stash.get(ROWS, []):
        terminalreporter.write_line(row)
