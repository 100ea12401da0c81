# SPDX-License-Identifier: MIT
"""Is this the only package named hybrid?"""

from __future__ import annotations

from collections.abc import Sequence

from hybrid.core.installation import DISTRIBUTION, NAMESAKE, mixed, namesake
from hybrid.diagnostics.finding import Finding

Installed = tuple[str, bool]  # what to say of another package of this name, "" if there is none; whether it is in the same folder


def inspect() -> Installed:
    return namesake(), mixed()


def judge(of_nodes: Sequence[Installed | None]) -> list[Finding]:
    """A finding if there is another package, else none. `of_nodes[rank]`: None where another rank of the node has looked."""
    others = [installed for installed in of_nodes if installed is not None and installed[0]]
    if not others:
        return []
    said, together = max(others, key=lambda installed: installed[1])
    if not together:
        return [Finding("package", "note", f"{said}; here {DISTRIBUTION}'s is found first", code="package-clash")]
    remedy = f"pip uninstall {NAMESAKE} {DISTRIBUTION}, then install one of them"
    return [Finding("package", "wrong", f"{said}: both have written to the same folder", remedy, code="package-clash")]
