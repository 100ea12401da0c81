# SPDX-License-Identifier: MIT
"""Runs probes in child processes outside the MPI job. A probe's result is its report, and how it ended."""

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

LIMIT = 60  # seconds a probe may take
_MARGIN = 5  # seconds beyond its limit in which a probe ends itself
_POLL = 0.1  # seconds between two checks whether another rank has failed
_KILL_WAIT = 5  # seconds to wait for a killed process: one that hangs in a driver may never end
# With these variables, a child that starts MPI would join this job as a second process of its rank.
_OF_LAUNCHERS = (
    *("PMI_", "PMI2_", "PMIX_", "PRTE_", "HYDI_", "HYDRA_", "MPIEXEC_", "SLURM_", "SRUN_"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "OMPI_APP_", "OMPI_FILE_", "OMPI_FIRST_", "OMPI_NUM_", "OMPI_ARGV", "OMPI_COMMAND"),
    *("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_pmix", "OMPI_MCA_prte", "OMPI_MCA_initial_wdir"),
)


@record
class ProbeResult:
    report: Mapping[str, Any]
    ended: str  # how the probe ended, in words; "" if well


def run_probe(probe: str, *arguments: str, limit: int = LIMIT) -> ProbeResult:
    """Run the probe `module.function` of this package for at most `limit` seconds."""
    with tempfile.TemporaryFile() as errors:
        process = _Probe([probe, str(limit), *arguments], limit, errors)
        try:
            with suppress(HybridError, OSError):  # `ended` has the reason
                process.next_message(Team())
        finally:
            process.close()
        failed = process.report.get("failed")
        return ProbeResult(process.report, process.ended or (f"failed: {failed}" if failed else ""))


def run_proxies(team: Team, probe: str, argument: str | None, limit: int) -> ProbeResult | None:
    """Run one probe for each rank, its proxy, all at the same time and for at most `limit` seconds. Every rank calls it, with
    None as `argument` for no proxy. Returns the result of this rank's proxy, even if another rank's failed."""
    with tempfile.TemporaryFile() as errors:
        proxy = None if argument is None else _Probe([probe, str(limit), argument], limit, errors)
        try:
            with suppress(HybridError):  # raised on all ranks when a proxy fails; each still has its own proxy's report
                while True:
                    with team.phase("proxies", timed=False) as exchange:
                        exchange.mine = None if proxy is None else proxy.next_message(team)
                    if all(message is None for message in exchange.all):
                        break
                    with team.phase("proxies", timed=False):
                        if proxy is not None:
                            proxy.answer(exchange.all)
        finally:
            if proxy is not None:
                proxy.close()
        return None if proxy is None else ProbeResult(proxy.report, proxy.ended)


class _Probe:
    """A process that runs a probe. `ended`: how it ended, in words, "" if well."""

    def __init__(self, words: Sequence[str], limit: int, errors: IO[bytes]) -> None:
        self.report: dict[str, Any] = {}
        self.ended = ""
        self._words, self._limit, self._errors = words, limit, errors
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0
        self._unread = b""

    def next_message(self, team: Team) -> str | None:
        """The probe's message to the other ranks' probes; None if it has ended well instead. HybridError if it has failed."""
        process = self._started()
        while (line := self._next_line(team, process)) is not None:
            if line.startswith("{"):
                with suppress(json.JSONDecodeError):  # a line that a library has printed
                    self.report |= json.loads(line)
            if "to_others" in self.report:
                return str(self.report.pop("to_others"))
        try:
            with busy():
                code: int | None = process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
        self.ended = self._end(code)
        if self.ended or "failed" in self.report:
            raise HybridError(self.ended or str(self.report["failed"]), code="probe-failed")
        return None

    def answer(self, messages: Sequence[str | None]) -> None:
        """Send all probes' messages to this one."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the probe has ended: `next_message` finds out how
            self._process.stdin.write(json.dumps(messages).encode() + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """Kill the probe and all processes that it started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):  # all have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_WAIT)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        """Start the probe in its own process group, without the launcher's variables, able to import what this process can."""
        if self._process is None:
            self._deadline = time.monotonic() + self._limit + _MARGIN
            search_path = [str(Path(hybrid.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
            environment = {name: value for name, value in os.environ.items() if not name.startswith(_OF_LAUNCHERS)}
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, search_path))
            command = [sys.executable, "-m", "hybrid.diagnostics.probes", *self._words]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
            try:
                self._process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)  # type: ignore[call-overload]  # noqa: S603
            except OSError as error:
                self.ended = f"could not be started ({one_line(error)})"
                raise
        return self._process

    def _next_line(self, team: Team, process: subprocess.Popen[bytes]) -> str | None:
        """The next line of output; None at the end of the output or of the time. PhaseEnded if another rank's probe fails."""
        assert process.stdout is not None
        while b"\n" not in self._unread:
            heartbeat()
            if team.size > 1:
                team.messages.end_if_others_failed()
            if time.monotonic() > self._deadline:
                return None
            has_ended = process.poll() is not None  # before the read, which then gets the last output
            if select.select([process.stdout], [], [], 0 if has_ended else _POLL)[0]:
                if not (read := os.read(process.stdout.fileno(), 1 << 16)):
                    return None
                self._unread += read
            elif has_ended:  # a grandchild may hold the pipe open
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def _end(self, code: int | None) -> str:
        """How the probe ended, in words; "" if well. `code`: its exit code; None if it has to be killed."""
        if code == 0:
            return ""
        if code is None or code == -signal.SIGALRM:
            return f"took more than {self._limit} s"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"ended with {code}" + (f": {lines[-1]}" if lines else "")
