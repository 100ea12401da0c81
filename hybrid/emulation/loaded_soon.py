# SPDX-License-Identifier: MIT
"""C libraries that only make things faster. They are compiled in the background, so that nobody waits for the compiler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hybrid.errors import HybridError


class LoadedSoon:
    """What `load` returns is in `loaded` when it has returned. It runs in a new thread; until then, and where it fails or no
    thread can be started, `loaded` is None."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self.loaded: Any = None
        thread = threading.Thread(target=self._load, args=(load,), name="hybrid-compile", daemon=True)
        with suppress(RuntimeError):  # the limit of threads is reached: all works without this one
            thread.start()
            _threads.append(thread)

    def _load(self, load: Callable[[], Any]) -> None:
        with suppress(HybridError, OSError):  # without a compiler NumPy does the same, slower
            self.loaded = load()


_threads: list[threading.Thread] = []


def wait_until_loaded(patience: float = 10.0) -> None:
    """Wait until this process has loaded its libraries, which takes milliseconds, and some seconds where they are compiled, once
    on a machine. `patience`: the most seconds to wait."""
    until = time.monotonic() + patience
    for thread in [*_threads]:
        thread.join(max(0.0, until - time.monotonic()))
        if not thread.is_alive():
            _threads.remove(thread)
