# SPDX-License-Identifier: MIT
"""Runs a probe in a child process that is no part of the MPI job. Its result is what it reported, and how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import hybrid
from hybrid.core.problem import record
from hybrid.errors import one_line
from hybrid.ranks.heartbeat import busy

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
    """Run the module `probe` of hybrid.diagnostics.probes for `limit` seconds at most."""
    return run_command(probe_command(probe, limit, *arguments), limit)


def probe_command(probe: str, limit: int, *arguments: str) -> list[str]:
    """The command that runs the module `probe` of hybrid.diagnostics.probes."""
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
