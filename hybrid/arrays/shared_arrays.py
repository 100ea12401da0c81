"""Arrays in memory that the ranks of a node share: every rank computes and copies on them where they lie."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import numpy as np

from hybrid.core.spans import Span
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team

SharedLocation = tuple[int, int]  # which shared array, and from which byte on


class SharedArrays:
    """Those of a team, as one rank knows them. They live as long as their root refers to them.

    The root holds them weakly; the others hold theirs until they hear that the root's has gone.
    """

    def __init__(self) -> None:
        self._arrays: dict[int, np.ndarray | weakref.ref[np.ndarray]] = {}
        self._numbers: dict[int, int] = {}  # at the root, by the array's id
        self.gone: list[int] = []  # of which this rank was the root, and the others may not know yet
        self._made = 0

    def make(self, team: Team, shape: tuple[int, int], dtype: str, root: int) -> np.ndarray | None:
        """On the ranks of the root's node the array, None elsewhere. All ranks call it."""
        here = root in team.node_ranks
        rows = Span(0, shape[0] if here else 0)
        array = make_shared_matrices(team, {"array": rows}, {"array": shape[1]}, dtype)["array"].array
        self._made += 1
        if not here:
            return None
        self._arrays[self._made] = weakref.ref(array) if team.rank == root else array
        if team.rank == root:
            self._numbers[id(array)] = self._made
            weakref.finalize(array, self._forget, id(array), self._made).atexit = False
        return array

    def _forget(self, key: int, number: int) -> None:
        del self._numbers[key]
        self._arrays.pop(number, None)
        self.gone.append(number)

    def location_of(self, array: np.ndarray | None) -> SharedLocation | None:
        """At the root: where in a shared array this one lies; None if it does not, or not row by row without gaps."""
        if array is None or not (array.flags.c_contiguous and array.flags.aligned):
            return None
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        number = self._numbers.get(id(owner))
        return None if number is None or array.dtype != owner.dtype else (number, array.ctypes.data - owner.ctypes.data)

    def drop(self, gone_at_roots: Iterable[Sequence[int]]) -> None:
        """Let go of what its root has let go of. Called once all ranks have heard of it."""
        heard = {number for gone in gone_at_roots for number in gone}
        self.gone = [number for number in self.gone if number not in heard]
        for number in heard:
            self._arrays.pop(number, None)

    def array_at(self, location: SharedLocation, shape: tuple[int, int]) -> np.ndarray:
        """On every rank of the root's node: what the root has there."""
        number, offset = location
        known = self._arrays[number]
        owner = known() if isinstance(known, weakref.ref) else known
        assert owner is not None
        start = offset // owner.itemsize
        return owner.reshape(-1)[start : start + shape[0] * shape[1]].reshape(shape)
