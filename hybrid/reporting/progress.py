# SPDX-License-Identifier: MIT
"""Shows the progress of a long run: percent, rate and the time left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from hybrid.core.text import duration

PATIENCE = 2.0  # seconds at the beginning of a run in which nothing is shown
_TERMINAL_EVERY = 0.5  # seconds between two updates on a terminal
# Between two lines elsewhere: at least these seconds, and at least this fraction of the elapsed time.
_FIRST_EVERY, _THEN_EVERY = 5.0, 1 / 8


class Progress:
    """Shows the progress of a long run: on a terminal in one line that changes and is removed at the end, elsewhere in lines at
    growing intervals. Call it when something is done.

    As a context it also updates while nothing calls it.
    """

    def __init__(
        self,
        shown: bool = True,
        *,
        repeats: int = 1,
        rate: Callable[[str, float], str] = lambda phase, seconds: "",
        part: Callable[[], str] = lambda: "",
        note: Callable[[], str] = lambda: "",
    ) -> None:
        """`shown`: False on silent ranks. `repeats`: how often each phase runs. `rate`: a phase's speed from its seconds. `part`:
        the name of what runs now; if it has changed since the last call, only the name and its time are shown. `note`: ends every
        line."""
        self._stream, self._terminal = sys.stderr, sys.stderr.isatty()
        self._rate, self._part, self._repeats, self._note = rate, part, repeats, note
        self._lock = threading.Lock()  # of all attributes below
        self._began = self._part_began = time.monotonic()
        self._next = self._began + PATIENCE
        self._seen = self._told_in = part()
        self._shown = False
        # Of the current phase: its name; when its first run began, its current run, and when the last call came; its completed
        # runs; the parts done in this run, and all parts.
        self._phase = ""
        self._phase_began = self._this_began = self._last = self._began
        self._times, self._done, self._of = 0, 0, 1
        self._over = threading.Event()
        if not shown:
            self._over.set()
        self._ticking = threading.Thread(target=self._tick_on, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        with suppress(RuntimeError):  # no thread can be started: only calls show progress
            self._ticking.start()
        return self

    def close(self, *error: object) -> None:
        """Stop, and clear the terminal's line."""
        self._over.set()
        if self._ticking.is_alive():
            self._ticking.join()
        with self._lock:
            if self._shown and self._terminal:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
            self._shown = False

    __exit__ = close

    def __call__(self, phase: str, done: int, of: int) -> None:
        """`done` of `of` parts of this phase are done. If they are fewer than before, the phase has begun again."""
        now = time.monotonic()
        with self._lock:
            self._watch_part(now)
            if phase != self._phase:
                self._phase, self._times, self._done, self._phase_began, self._this_began = phase, 0, 0, now, now
            if done < self._done:
                self._times, self._this_began = self._times + 1, now
            self._done, self._of, self._last, self._told_in = done, max(1, of), now, self._seen
        self.tick()

    def tick(self) -> None:
        """Show the progress if it is time for an update."""
        now = time.monotonic()
        with self._lock:
            self._watch_part(now)
            if now < self._next or self._over.is_set():
                return
            self._next = now + (_TERMINAL_EVERY if self._terminal else max(_FIRST_EVERY, _THEN_EVERY * (now - self._began)))
            before, after = ("\r\x1b[K", "") if self._terminal else ("", "\n")
            self._stream.write(f"{before}hybrid: {self._text(now)}{self._note()}{after}")
            self._shown = True
            self._stream.flush()

    def _tick_on(self) -> None:
        with suppress(OSError, ValueError):  # a closed stream is no reason to fail
            while not self._over.wait(_TERMINAL_EVERY):
                self.tick()

    def _watch_part(self, now: float) -> None:
        if (part := self._part()) != self._seen:
            self._seen, self._part_began = part, now

    def _text(self, now: float) -> str:
        """The text to show. Percent and time left are of all runs of the phase, the rate is of the current run."""
        if not self._phase or self._told_in != self._seen:
            return f"{self._seen} … {duration(now - self._part_began)}".lstrip()
        part = min(1.0, self._done / self._of)
        whole = min(1.0, (self._times + part) / max(self._repeats, self._times + 1))
        said, spent = [f"{100 * whole:.0f} %"], self._last - self._this_began
        if part and spent > 0 and (speed := self._rate(self._phase, spent / part)):
            said.append(speed)
        if whole:
            left = (self._last - self._phase_began) / whole - (now - self._phase_began)
            if left >= 0.5:  # no time left when the phase takes longer than estimated
                said.append(f"{duration(left)} left")
        else:
            said.append(f"{duration(now - self._phase_began)} so far")
        return f"{self._phase} … {', '.join(said)}"
