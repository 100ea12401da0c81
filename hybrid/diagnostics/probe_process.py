# SPDX-License-Identifier: MIT
"""Runs a probe in a child process that is no part of the MPI job. Its result is what it reported, and how it ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import hybrid
from hybrid.core.problem import record
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


LIMIT = 60  # seconds a probe may take
MARGIN = 5  # seconds after its limit that a probe gets to end itself
_KILL_WAIT = 5  # seconds to wait for a killed process: one that hangs in a driver may never end
# With these variables in its environment a child that starts MPI would join this job as a second process of its rank.
_OF_LAUNCHERS = (
    *("PMI_", "PMI2_", "PMIX_", "PRTE_", "HYDI_", "HYDRA_", "MPIEXEC_", "SLURM_", "SRUN_"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "OMPI_APP_", "OMPI_FILE_", "OMPI_FIRST_", "OMPI_NUM_", "OMPI_ARGV", "OMPI_COMMAND"),
    *("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_pmix", "OMPI_MCA_prte", "OMPI_MCA_initial_wdir"),
)


@record
class ProbeResult:
    """What came of a probe."""

    report: Mapping[str, Any]  # all that it reported
    ended: str  # how it ended, in words; "" if well


def run_probe(probe: str, *arguments: str, limit: int = LIMIT) -> ProbeResult:
    """Run the probe `module.function` of hybrid.diagnostics.probes for `limit` seconds at most."""
    return run_command(probe_command(probe, limit, *arguments), limit)


def probe_command(probe: str, limit: int, *arguments: str) -> list[str]:
    """The command that runs the probe `module.function` of hybrid.diagnostics.probes."""
    return [sys.executable, "-m", "hybrid.diagnostics.probes", probe, str(limit), *arguments]


def run_command(command: Sequence[str], limit: int) -> ProbeResult:
    """Run a probe by its command for `limit` seconds at most."""
    try:
        # Its output goes to files: a pipe would stay open as long as any process that the probe started.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, busy():
            process = start(command, subprocess.DEVNULL, output, errors)
            try:
                code: int | None = process.wait(limit + MARGIN)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                kill(process)
            output.seek(0)
            report: dict[str, Any] = {}
            for line in output.read().decode(errors="replace").splitlines():
                report |= parse_line(line)
            return ProbeResult(report, how_it_ended(code, limit, errors))
    except OSError as error:
        return ProbeResult({}, f"could not be started ({one_line(error)})")


def start(command: Sequence[str], stdin: int, output: IO[bytes] | int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a probe in a process group of its own, without the launcher's variables; it can import what this process can."""
    search_path = [str(Path(hybrid.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_OF_LAUNCHERS)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, search_path))
    return subprocess.Popen(  # noqa: S603
        command, stdin=stdin, stdout=output, stderr=errors, env=environment, start_new_session=True
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a probe and all processes that it started."""
    with suppress(ProcessLookupError, PermissionError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_WAIT)


def how_it_ended(code: int | None, limit: int, errors: IO[bytes]) -> str:
    """How a probe ended, in words; "" if well. `code`: the exit code, None where it had to be killed; `errors`: its standard
    error."""
    if code == 0:
        return ""
    if code is None or code == -signal.SIGALRM:
        return f"took more than {limit} s"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return f"ended with {code}" + (f": {lines[-1]}" if lines else "")


def parse_line(line: str) -> dict[str, Any]:
    """What a probe reports in this line of its output; empty where a library printed the line."""
    if line.startswith("{"):
        with suppress(json.JSONDecodeError):
            report = json.loads(line)
            if isinstance(report, dict):
                return report
    return {}
