# SPDX-License-Identifier: MIT
"""The check of a product whose C is at the root, from host memory, and what of a wrong one the host computes again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hybrid.arrays.sources import MatrixSource, RootMatrix
from hybrid.execution.host_matrices import in_numbers
from hybrid.execution.root_alone import recompute_at_root, verify_at_root
from hybrid.host.row_view import RowView
from hybrid.ranks.team import Team
from hybrid.selection.decision import Decision
from hybrid.verification.check import Check, Suspect
from hybrid.verification.freivalds import verify
from hybrid.verification.transfers import verify_transfer

if TYPE_CHECKING:
    from hybrid.verification.expected_sums import ExpectedSums
    from hybrid.verification.recompute import Recomputed
    from hybrid.verification.wrong_parts import WrongParts


class HostCheck:
    """The host's part of a `ProductCheck`. Every rank makes one, and calls its methods."""

    def __init__(
        self, team: Team, decision: Decision, operands: tuple[MatrixSource, MatrixSource], views: Mapping[str, RowView]
    ) -> None:
        """`views`: A, B and C in host memory, or at the root where they lie."""
        self._team, self._decision, self._plan = team, decision, decision.plan
        self._operands, self._views = operands, views
        self._threads = decision.placements[team.rank].threads.count

    def check(self, wrong: WrongParts | None, suspects: Sequence[Suspect] = ()) -> Check:
        """The check of the product. `wrong`: gets the parts of C that are wrong, where these may be repaired."""
        team, plan, by = self._team, self._plan, self._decision.multiplied_by
        if plan.at_root:
            return verify_at_root(team, plan, self._views, self._threads_of_all, wrong, suspects, by)
        if len(plan.topology.nodes) > 1:
            for key, source in zip("AB", self._operands, strict=True):
                if isinstance(source, RootMatrix):
                    verify_transfer(team, plan, key, source, self._views[key], self._threads)
        a, b, c = self._numbers()
        return verify(team, plan, a, b, c, self._threads, wrong, suspects, by)

    def compute_again(self, wrong: WrongParts, expected: Sequence[ExpectedSums]) -> list[Recomputed]:
        """Compute the wrong parts of C again."""
        from hybrid.verification.recompute import recompute

        if self._plan.at_root:
            return recompute_at_root(self._team, self._plan, self._views, self._threads_of_all, wrong, expected)
        return recompute(self._team, self._plan, self._numbers(), wrong, expected, self._threads)

    def _numbers(self) -> list[RowView]:
        return in_numbers((self._views[key] for key in "ABC"), self._plan.problem)

    @property
    def _threads_of_all(self) -> int:
        return sum(placement.threads.count for placement in self._decision.placements)
