# SPDX-License-Identifier: MIT
"""Proxies: child processes that stand in for the ranks where a probe needs all ranks together and may die.

A proxy runs phases like a rank, but without MPI: it writes what it hands in at the end of a phase to its rank, and the rank
exchanges it with the other ranks and writes back what all proxies handed in. When one proxy fails, all are killed; what
each has reported until then stays.
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

from hybrid.diagnostics.probe_process import MARGIN, ProbeResult, how_it_ended, kill, parse_line, start
from hybrid.errors import HybridError, one_line
from hybrid.ranks.heartbeat import busy, heartbeat
from hybrid.ranks.team import Team

_POLL = 0.1  # seconds between two checks whether another rank has failed


def run_proxies(team: Team, command: Sequence[str] | None, limit: int) -> ProbeResult | None:
    """Run one proxy for each rank, all of them together, for `limit` seconds at most. Every rank calls it.

    `command`: starts this rank's proxy; None on a rank without one. Returns the result of this rank's proxy, also where
    another rank's failed.
    """
    with tempfile.TemporaryFile() as errors:
        proxy = None if command is None else _Proxy(command, limit, errors)
        try:
            with suppress(HybridError):  # raised on all ranks when a proxy fails; each rank still has what its own reported
                _exchange_for_proxies(team, proxy)
        finally:
            if proxy is not None:
                proxy.close()
        return None if proxy is None else ProbeResult(proxy.report, proxy.ended)


def _exchange_for_proxies(team: Team, proxy: _Proxy | None) -> None:
    while True:
        with team.phase("proxies", timed=False) as exchange:
            exchange.mine = None if proxy is None else proxy.next_message(team)
        if all(message is None for message in exchange.all):
            return
        with team.phase("proxies", timed=False):
            if proxy is not None:
                proxy.answer(exchange.all)


class _Proxy:
    """The proxy of one rank, as the rank sees it."""

    def __init__(self, command: Sequence[str], limit: int, errors: IO[bytes]) -> None:
        self.report: dict[str, Any] = {}
        self.ended = ""
        self._command, self._limit, self._errors = command, limit, errors
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0
        self._unread = b""

    def next_message(self, team: Team) -> str | None:
        """What the proxy hands in at the end of its phase; None if it has ended well instead. HybridError if it has failed."""
        process = self._started()
        while (line := self._next_line(team, process)) is not None:
            report = parse_line(line)
            message = report.pop("to_others", None)
            self.report |= report
            if message is not None:
                return str(message)
        try:
            with busy():
                code: int | None = process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        self.ended = how_it_ended(code, self._limit, self._errors)
        if self.ended or "failed" in self.report:
            raise HybridError(self.ended or str(self.report["failed"]), code="probe-failed")
        return None

    def answer(self, messages: Sequence[str | None]) -> None:
        """Write to the proxy what all proxies handed in."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: `next_message` finds out how
            self._process.stdin.write(json.dumps(messages).encode() + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        if self._process is None:
            return
        kill(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._deadline = time.monotonic() + self._limit + MARGIN
            try:
                self._process = start(self._command, subprocess.PIPE, subprocess.PIPE, self._errors)
            except OSError as error:
                self.ended = f"could not be started ({one_line(error)})"
                raise
        return self._process

    def _next_line(self, team: Team, process: subprocess.Popen[bytes]) -> str | None:
        """The next line of the proxy's output; None at the end of its output or of its time. PhaseEnded if another rank's proxy
        fails meanwhile."""
        assert process.stdout is not None
        while b"\n" not in self._unread:
            heartbeat()
            if team.size > 1:
                team.messages.end_if_others_failed()
            if time.monotonic() > self._deadline:
                return None
            if select.select([process.stdout], [], [], _POLL)[0]:
                read = os.read(process.stdout.fileno(), 1 << 16)
                if not read:
                    return None
                self._unread += read
            elif process.poll() is not None:  # a process that it started may hold the pipe open
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")
