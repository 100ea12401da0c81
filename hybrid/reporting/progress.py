# SPDX-License-Identifier: MIT
"""The progress of a long run."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

PATIENCE = 2.0  # seconds after which a run is long enough to show its progress


class Progress:
    """Shows the phase of a long run: a bar on a terminal, elsewhere one line for each phase."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._phase = ""
        self._printed = False  # a line for this phase
        self._bar: Any = None

    def __call__(self, phase: str, done: int, of: int) -> None:
        if phase != self._phase:
            self.close()
            self._phase, self._printed = phase, False
            if self._stream.isatty():
                from tqdm import tqdm

                self._bar = tqdm(total=of, desc=phase, delay=PATIENCE, leave=False, file=self._stream)
        if self._bar is not None:
            if done < self._bar.n:  # the same phase of the next repeat
                self._bar.reset()
            self._bar.update(done - self._bar.n)
        elif not self._printed and time.monotonic() - self._began > PATIENCE:
            self._printed = True
            print(f"hybrid: {phase} …", file=self._stream, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
