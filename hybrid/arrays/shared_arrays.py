# SPDX-License-Identifier: MIT
"""Arrays of `hybrid.empty` in node-shared memory, on which every rank of the node works without copies or messages."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import numpy as np

from hybrid.core.spans import Span
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team

SharedLocation = tuple[int, int, bool]  # the number of a shared array, an offset in bytes, and whether rows there are columns


class SharedArrays:
    """A team's shared arrays, as one rank knows them.

    An array lives as long as the user's program refers to it at its root, where only a weak reference is kept here. The other
    ranks refer to it until they learn that it is gone at the root.
    """

    def __init__(self) -> None:
        self._arrays: dict[int, np.ndarray | weakref.ref[np.ndarray]] = {}
        self._numbers: dict[int, int] = {}  # at the root: each array's number, by its id
        self.gone: list[int] = []  # numbers of arrays that are gone at this root, which other ranks may not know yet
        self._made = 0  # the last number; the same on all ranks

    def make(self, team: Team, shape: tuple[int, int], dtype: np.dtype, root: int) -> np.ndarray | None:
        """A new array on the ranks of the root's node, None on other nodes. All ranks call it."""
        here = root in team.node_ranks
        rows = Span(0, shape[0] if here else 0)
        array = make_shared_matrices(team, {"array": rows}, {"array": shape[1]}, {"array": dtype})["array"].array
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

    def location_of(self, array: np.ndarray | None, *, transposed: bool = False) -> SharedLocation | None:
        """Where `array` lies in a shared array, for the root to tell; None where it lies in none, or is not contiguous.

        It may be a view of it as other numbers, such as the parts of complex ones. `transposed`: it may also be the transpose of
        what lies there.
        """
        if array is not None and transposed and not array.flags.c_contiguous:
            found = self.location_of(array.T)
            return found and (*found[:2], True)
        if array is None or not (array.flags.c_contiguous and array.flags.aligned):
            return None
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        number = self._numbers.get(id(owner))
        return None if number is None else (number, array.ctypes.data - owner.ctypes.data, False)

    def drop(self, gone_at_roots: Iterable[Sequence[int]]) -> None:
        """Drop the arrays that are gone at their roots, when all ranks have received every root's `gone`."""
        numbers = {number for gone in gone_at_roots for number in gone}
        self.gone = [number for number in self.gone if number not in numbers]
        for number in numbers:
            self._arrays.pop(number, None)

    def array_at(self, location: SharedLocation, shape: tuple[int, int], dtype: str) -> np.ndarray:
        """The matrix at a location that the root sent; on every rank of the root's node."""
        number, offset, transposed = location
        known = self._arrays[number]
        owner = known() if isinstance(known, weakref.ref) else known
        assert owner is not None
        size = shape[0] * shape[1] * np.dtype(dtype).itemsize
        elements = owner.reshape(-1).view(np.uint8)[offset : offset + size].view(dtype)
        return elements.reshape(shape[::-1]).T if transposed else elements.reshape(shape)
