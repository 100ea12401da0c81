# SPDX-License-Identifier: MIT
"""What is said of a whole program, after its own output, and its JSON line."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from typing import Any

from hybrid.classroom.program_account import Account
from hybrid.errors import with_code

_MOST = 8  # findings that are shown


def told(account: Account) -> Iterator[str]:
    """The lines about a program's run."""
    name = next(iter(account.sources))
    how = f"exit status {account.status}" if account.status >= 0 else f"ended by {signal.Signals(-account.status).name}"
    launches = "" if account.launches is None else f", {account.launches} kernel launch{'' if account.launches == 1 else 'es'}"
    yield f"{name}: {how}{launches}"
    for finding in account.findings[:_MOST]:
        yield f"  * {finding.line}"
        for file, line in finding.places:
            lines = account.sources.get(file, ())
            if 0 < line <= len(lines):
                yield f"      {line:>4}  {lines[line - 1].strip()}"
    if len(account.findings) > _MOST:
        yield f"  and {len(account.findings) - _MOST} more; --json FILE keeps all"
    yield from (f"  note: {note}" for note in account.notes)
    if account.failed:
        yield with_code(f"first CUDA call that failed: {account.failed}", "cuda-call")
    yield "; ".join(filter(None, ["no error found" if account.is_right else "wrong", account.looked_at]))


def as_record(account: Account, arguments: Sequence[str]) -> dict[str, Any]:
    """The entries of a JSON line."""
    return {
        "file": next(iter(account.sources)),
        "arguments": list(arguments),
        "status": account.status,
        "launches": account.launches,
        "right": account.is_right,
        "findings": [finding.as_record() for finding in account.findings],
        "notes": list(account.notes),
        "first_failed": account.failed or None,
        "looked_at": account.looked_at or None,
    }
