# SPDX-License-Identifier: MIT
"""Libraries of C that only make things faster: nobody waits for a compiler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hybrid.errors import HybridError


class LoadedSoon:
    """Compiled and loaded in a thread of its own, which starts now. `loaded`: what `load` returns; None until then, and where
    there is no compiler."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self.loaded: Any = None
        threading.Thread(target=self._load, args=(load,), name="hybrid-compile", daemon=True).start()

    def _load(self, load: Callable[[], Any]) -> None:
        with suppress(HybridError, OSError):  # NumPy does the same, slower
            self.loaded = load()
