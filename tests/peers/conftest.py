# SPDX-License-Identifier: MIT
"""Marks of the peers' own test suites."""


def pytest_configure(config):
    for name in ("thread_unsafe", "parallel_threads", "fail_slow", "slow", "leaks_references", "valgrind_error"):
        config.addinivalue_line("markers", f"{name}: of a peer's tests")
