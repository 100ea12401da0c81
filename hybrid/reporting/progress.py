# SPDX-License-Identifier: MIT
"""How far a long run is: percent, rate and the time left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from hybrid.core.text import duration

PATIENCE = 2.0  # seconds at the beginning of a run in which nothing is shown
_TERMINAL_EVERY = 0.5  # seconds between two texts on a terminal
# Between two lines elsewhere: seconds at least, and at least this fraction of the time that has passed.
_FIRST_EVERY, _THEN_EVERY = 5.0, 1 / 8

Rate = Callable[[str, float], str]  # the rate, in words, of a phase that takes so many seconds


class Progress:
    """Shows how far a long run is: on a terminal in one line that changes and goes away, elsewhere in lines that come less and
    less often. Call it when something is done.

    As a context it shows the run also while nothing calls it.
    """

    def __init__(
        self,
        shown: bool = True,
        *,
        repeats: int = 1,
        rate: Rate | None = None,
        part: Callable[[], str] = lambda: "",
        note: Callable[[], str] = lambda: "",
    ) -> None:
        """`shown`: False on ranks that tell nothing. `repeats`: how often each phase comes. `rate`: says how fast a phase is.
        `part`: names what runs now; while that is not what ran at the last call, it is shown with its time alone. `note`: what
        ends every line."""
        self._stream, self._terminal = sys.stderr, sys.stderr.isatty()
        self._rate, self._part, self._repeats, self._note = rate, part, repeats, note
        self._lock = threading.Lock()  # of all that follows
        self._began = self._part_began = time.monotonic()
        self._next = self._began + PATIENCE
        self._seen = self._told_in = part()
        self._shown = False
        # What has been told: the phase, when it began first, when it began last, and when something was done last; how often it
        # was done before; parts that are done now, of how many.
        self._phase = ""
        self._phase_began = self._this_began = self._last = self._began
        self._times, self._done, self._of = 0, 0, 1
        self._over = threading.Event()
        if not shown:
            self._over.set()
        self._ticking = threading.Thread(target=self._tick_on, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        with suppress(RuntimeError):  # the limit of threads is reached: progress is shown where the product tells of it
            self._ticking.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Show nothing any more, and remove what is shown on a terminal."""
        self._over.set()
        if self._ticking.is_alive():
            self._ticking.join()
        with self._lock:
            if self._shown and self._terminal:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
            self._shown = False

    def __call__(self, phase: str, done: int, of: int) -> None:
        """`done` parts `of` so many of this phase are done. If they are fewer than before, the phase has begun again."""
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
        """Show the progress, if it is time for that."""
        now = time.monotonic()
        with self._lock:
            self._watch_part(now)
            if now < self._next or self._over.is_set():
                return
            text = f"hybrid: {self._text(now)}{self._note()}"
            if self._terminal:
                self._next = now + _TERMINAL_EVERY
                self._stream.write(f"\r\x1b[K{text}")
            else:
                self._next = now + max(_FIRST_EVERY, _THEN_EVERY * (now - self._began))
                self._stream.write(f"{text}\n")
            self._shown = True
            self._stream.flush()

    def _tick_on(self) -> None:
        while not self._over.wait(_TERMINAL_EVERY):
            try:
                self.tick()
            except (OSError, ValueError):  # the stream is gone, which is no reason to fail
                return

    def _watch_part(self, now: float) -> None:
        if (part := self._part()) != self._seen:
            self._seen, self._part_began = part, now

    def _text(self, now: float) -> str:
        """What is shown. Percent and time left are of all times that the phase comes, the rate is of the present one."""
        if not self._phase or self._told_in != self._seen:
            return f"{self._seen} … {duration(now - self._part_began)}".lstrip()
        part = min(1.0, self._done / self._of)
        whole = min(1.0, (self._times + part) / max(self._repeats, self._times + 1))
        said, spent = [f"{100 * whole:.0f} %"], self._last - self._this_began
        if self._rate is not None and part and spent > 0 and (speed := self._rate(self._phase, spent / part)):
            said.append(speed)
        if whole:
            left = (self._last - self._phase_began) / whole - (now - self._phase_began)
            if left >= 0.5:  # what takes longer than it seemed tells nothing until it is done
                said.append(f"{duration(left)} left")
        else:
            said.append(f"{duration(now - self._phase_began)} so far")
        return f"{self._phase} … {', '.join(said)}"
