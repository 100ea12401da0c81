# SPDX-License-Identifier: MIT
"""Makes one account of an MPI program's run from those of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybrid.classroom.program_account import Account
from hybrid.classroom.program_findings import Finding


def of_all_ranks(accounts: Sequence[Account]) -> Account:
    """The account of all ranks. What was found on several ranks is said once, with their numbers; launches are added up."""
    if len(accounts) == 1:
        return accounts[0]
    by_finding: dict[Finding, list[int]] = {}
    by_failure: dict[str, list[int]] = {}
    for rank, account in enumerate(accounts):
        for finding in account.findings:
            by_finding.setdefault(finding, []).append(rank)
        if account.failed:
            by_failure.setdefault(account.failed, []).append(rank)
    launches = [account.launches for account in accounts if account.launches is not None]
    return replace(
        accounts[0],
        launches=sum(launches) if len(launches) == len(accounts) else None,
        findings=tuple(
            replace(finding, text=f"{_named(ranks, len(accounts))}: {finding.text}") for finding, ranks in by_finding.items()
        ),
        notes=tuple(dict.fromkeys(note for account in accounts for note in account.notes)),
        failed="; ".join(f"{_named(ranks, len(accounts))}: {failure}" for failure, ranks in by_failure.items()),
    )


def _named(ranks: Sequence[int], of: int) -> str:
    if len(ranks) == of:
        return f"all {of} ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
