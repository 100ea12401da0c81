# SPDX-License-Identifier: MIT
"""What every test may use. How the tests are chosen, seeded and agreed on by ranks: the plugins in tests/support."""

import gc
import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["support.ranks", "support.seeds", "support.needs", "support.selection"]

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Kernels compiled for the emulated GPU are kept from run to run, for all workers and programs that tests start.

    hybrid.emulation names each after everything that it is made from, but for its own way of making it. Programs that tests
    start can be interrupted, also where a script has started the tests in the background, and what their ranks print arrives
    in whole lines: an unbuffered print is two writes.
    """
    os.environ.pop("PYTHONUNBUFFERED", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    made_by = hashlib.sha256()
    for name in ("build.py", "cache.py"):
        made_by.update((ROOT / "hybrid/emulation" / name).read_bytes())
    if os.access(ROOT, os.W_OK):
        os.environ.pop("HYBRID_CACHE", None)
        os.environ["XDG_CACHE_HOME"] = str(ROOT / ".test_cache" / made_by.hexdigest()[:12])


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Without looking for garbage, time and again among ten thousand tests that all stay, nor later among them."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.fixture
def comm() -> Any:
    """All ranks of the run."""
    from mpi4py import MPI

    return MPI.COMM_WORLD
