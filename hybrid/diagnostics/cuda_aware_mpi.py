# SPDX-License-Identifier: MIT
"""Can MPI send a GPU's memory? A child process tries it, since how a library was configured proves little."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid.diagnostics.finding import Finding, Unknown, ranks_by_value
from hybrid.diagnostics.probe_process import ProbeResult, run_probe


def inspect(index: int) -> str | Unknown:
    """Whether MPI can send the memory of the GPU with this index: "yes", or why not."""
    return interpret(run_probe("cuda_aware", str(index)))


def interpret(result: ProbeResult) -> str | Unknown:
    """What the probe's result means: "yes", or why MPI cannot."""
    if result.report.get("correct"):
        return "yes"
    if result.report.get("correct") is False:
        return "what arrived was not what had been sent"
    if result.report.get("stage") == "moving":
        return f"the process that tried {result.ended or 'reported nothing'}"
    return Unknown(f"the process that should try it {result.ended or 'reported nothing'} before it could")


def judge(answers: Sequence[str | Unknown | None]) -> Finding:
    """`answers[rank]`: for one rank of each host; None for the others, and where there is no GPU."""
    tried = [answer for answer in ranks_by_value(answers) if answer is not None]
    if not tried:
        return Finding("cuda-aware MPI", "ok", "not tried: no GPU")
    for answer in tried:
        if isinstance(answer, Unknown):
            return Finding("cuda-aware MPI", "unknown", answer.reason)
        if answer != "yes":
            return Finding("cuda-aware MPI", "ok", f"no ({answer}); nothing here needs it")
    return Finding("cuda-aware MPI", "ok", "yes: a GPU's memory sent to itself arrived")
