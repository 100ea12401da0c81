"""Does MPI move memory of a GPU? Seen by doing it, in a process that may die: what a build was configured for says little."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid.diagnostics.finding import Finding, Unknown, alike, attempt
from hybrid.diagnostics.probe_process import Told, ask


def look(index: int) -> str | Unknown:
    """ "yes", or why not. `index`: of the GPU in this process's numbering."""
    told = attempt(lambda: ask("cuda_aware", str(index)))
    return told if isinstance(told, Unknown) else interpret(told)


def interpret(told: Told) -> str | Unknown:
    if told.said.get("right"):
        return "yes"
    if told.said.get("right") is False:
        return "what arrived was not what had been sent"
    if told.said.get("stage") == "moving":
        return f"the process that tried {told.ended or 'said nothing'}"
    return Unknown(f"the process that was to try it {told.ended or 'said nothing'} before it came to it")


def judge(answers: Sequence[str | Unknown | None]) -> Finding:
    """`answers`: of one rank a host, None for all others and where there is no GPU."""
    tried = [answer for answer in alike(answers) if answer is not None]
    if not tried:
        return Finding("cuda-aware MPI", "ok", "not tried: no GPU")
    for answer in tried:
        if isinstance(answer, Unknown):
            return Finding("cuda-aware MPI", "unknown", answer.reason)
        if answer != "yes":
            return Finding("cuda-aware MPI", "ok", f"no ({answer}); nothing here needs it")
    return Finding("cuda-aware MPI", "ok", "yes: a GPU's memory sent to itself arrived")
