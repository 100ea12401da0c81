# SPDX-License-Identifier: MIT
"""Compiles optional C libraries, which only speed things up, in the background, so that nobody waits for the compiler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hybrid.errors import HybridError


class LoadedSoon:
    """Calls `load` in a new thread and keeps its result in `loaded`, which is None until then, and if `load` fails or no thread
    can be started."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self.loaded: Any = None
        thread = threading.Thread(target=self._load, args=(load,), name="hybrid-compile", daemon=True)
        with suppress(RuntimeError):  # no more threads: all works without the library, slower
            thread.start()
            _threads.append(thread)

    def _load(self, load: Callable[[], Any]) -> None:
        with suppress(HybridError, OSError):  # no compiler: NumPy does the same, slower
            self.loaded = load()


_threads: list[threading.Thread] = []


def wait_until_loaded(patience: float = 10.0) -> None:
    """Wait at most `patience` seconds for this process's libraries: milliseconds if cached, seconds if they are compiled."""
    until = time.monotonic() + patience
    for thread in [*_threads]:
        thread.join(max(0.0, until - time.monotonic()))
        if not thread.is_alive():
            _threads.remove(thread)
