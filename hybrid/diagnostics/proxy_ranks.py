"""Processes that stand for their ranks: they go through phases like a team, and may die.

Each rank passes on what its deputy says to the others. When one of them fails all are ended, and what each has said stays.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from hybrid.diagnostics.probe_process import Told, begin, end, how_it_ended, words_of
from hybrid.errors import HybridError, one_line
from hybrid.ranks.heartbeat import busy, heartbeat
from hybrid.ranks.team import Team

_LOOK = 0.1  # seconds between two looks at the other ranks
_CLOSED = object()


def send(team: Team, command: Sequence[str] | None, limit: int) -> Told | None:
    """Run a probe a rank, all of them together, for `limit` seconds and a few at most. Every rank calls it.

    `command`: None on a rank that sends nobody. How this rank's deputy did, also where another's failed.
    """
    with tempfile.TemporaryFile() as errors:
        proxy = None if command is None else _Deputy(command, limit, errors)
        try:
            with suppress(HybridError):  # on all ranks; each knows what became of its own
                _pass_words(team, proxy)
        finally:
            if proxy is not None:
                proxy.leave()
        return None if proxy is None else Told(proxy.said, proxy.ended)


def _pass_words(team: Team, proxy: _Deputy | None) -> None:
    while True:
        with team.phase("proxies", timed=False) as meeting:
            meeting.mine = None if proxy is None else proxy.next_word(team)
        if all(word is None for word in meeting.all):
            return
        with team.phase("proxies", timed=False):
            if proxy is not None:
                proxy.answer(meeting.all)


class _Deputy:
    """One rank's."""

    def __init__(self, command: Sequence[str], limit: int, errors: IO[bytes]) -> None:
        self.said: dict[str, Any] = {}
        self.ended = ""
        self._command, self._limit, self._errors = command, limit, errors
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0
        self._unread = b""

    def next_word(self, team: Team) -> str | None:
        """What it says to the others, None once it has ended well. HybridError if it fails."""
        process = self._started()
        while (line := self._next_line(team, process)) is not _CLOSED:
            words = words_of(line)
            word = words.pop("to_others", None)
            self.said |= words
            if word is not None:
                return str(word)
        try:
            with busy():
                code: int | None = process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        self.ended = how_it_ended(code, self._limit, self._errors)
        if self.ended or "failed" in self.said:
            raise HybridError(self.ended or str(self.said["failed"]))
        return None

    def answer(self, words: Sequence[str | None]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # how it ended is told when its next word is asked for
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()

    def leave(self) -> None:
        if self._process is None:
            return
        end(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._deadline = time.monotonic() + self._limit + 5
            try:
                self._process = begin(self._command, subprocess.PIPE, subprocess.PIPE, self._errors)
            except OSError as error:
                self.ended = f"could not be started ({one_line(error)})"
                raise
        return self._process

    def _next_line(self, team: Team, process: subprocess.Popen[bytes]) -> Any:
        """PhaseEnded if another rank's deputy fails meanwhile."""
        assert process.stdout is not None
        while b"\n" not in self._unread:
            heartbeat()
            if team.size > 1:
                team.messages.end_if_others_failed()
            if time.monotonic() > self._deadline:
                return _CLOSED
            if select.select([process.stdout], [], [], _LOOK)[0]:
                read = os.read(process.stdout.fileno(), 1 << 16)
                if not read:
                    return _CLOSED
                self._unread += read
            elif process.poll() is not None:  # what it started may hold the pipe open
                return _CLOSED
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")
