# SPDX-License-Identifier: MIT
"""Tests under mpirun: the ranks agree on every outcome, rank 0 alone prints, and a stuck rank cannot hang the run."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

GRACE = 120.0  # seconds the other ranks may take longer for a test than this one


@pytest.hookimpl(trylast=True)  # after the terminal reporter was made
def pytest_configure(config: pytest.Config) -> None:
    # What a shell starts in the background ignores interrupts, and so would every program that a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    comm = world(config)
    if comm is not None and comm.rank != 0:
        reporter = config.pluginmanager.getplugin("terminalreporter")
        reporter._tw._file = Path(os.devnull).open("w")  # noqa: SIM115 (open until this process ends)


def world(config: pytest.Config) -> Any:
    """A communicator of all ranks for this file's own messages, or None where there is one rank only."""
    if not (config.getoption("--with-mpi", False) or config.getoption("--only-mpi", False)):
        return None
    if not hasattr(config, "agreeing"):
        from mpi4py import MPI

        config.agreeing = MPI.COMM_WORLD.Dup() if MPI.COMM_WORLD.size > 1 else None
    return config.agreeing


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    comm = world(item.config)
    if comm is None or call.when != "call" or item.get_closest_marker("mpi") is None:
        return
    report = outcome.get_result()
    texts = _say_to_all(comm, report.longreprtext if report.failed else "", item)
    failed = [rank for rank, text in enumerate(texts) if text]
    if failed and not report.failed:
        report.outcome = "failed"
        report.longrepr = f"failed on rank {', '.join(map(str, failed))}"
    if comm.rank == 0:
        report.sections += [(f"rank {rank}", texts[rank]) for rank in failed if rank != 0]


def _say_to_all(comm: Any, text: str, item: pytest.Item) -> list[str]:
    """Every rank's text; ends the whole run if a rank does not come to say it."""
    from mpi4py import MPI

    said = text.encode()
    sizes = bytearray(8 * comm.size)
    _wait(comm.Iallgather([len(said).to_bytes(8, "little"), MPI.BYTE], [sizes, MPI.BYTE]), text, item)
    counts = [int.from_bytes(sizes[8 * rank : 8 * rank + 8], "little") for rank in range(comm.size)]
    if not any(counts):
        return [""] * comm.size
    everything = bytearray(sum(counts))
    _wait(comm.Iallgatherv([said, MPI.BYTE], [everything, counts, MPI.BYTE]), text, item)
    starts = [sum(counts[:rank]) for rank in range(comm.size)]
    return [everything[start : start + count].decode() for start, count in zip(starts, counts, strict=True)]


def _wait(request: Any, text: str, item: pytest.Item) -> None:
    from mpi4py import MPI

    deadline = time.monotonic() + GRACE
    while not request.Test():
        if time.monotonic() > deadline:
            with item.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
                sys.stderr.write(f"\nrank {MPI.COMM_WORLD.rank} waits in vain for the others after {item.nodeid}\n{text}\n")
                sys.stderr.flush()
            MPI.COMM_WORLD.Abort(1)
        time.sleep(0.001)
