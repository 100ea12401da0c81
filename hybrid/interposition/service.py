# SPDX-License-Identifier: MIT
"""Products that one rank asks for while the others serve it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hybrid.api import multiply
from hybrid.errors import HybridError
from hybrid.ranks.team import team_of

if TYPE_CHECKING:
    from mpi4py import MPI

_EAGER = 200  # polls without a pause after a product
# A pause between two polls is this part of the time since the last product, and so long at most: an idle rank takes less than
# 1 % of a core.
_PART, _LONGEST = 0.01, 5e-3


class Service:
    """The products of a communicator's root. Every rank makes one, and all of them end it together: the root by `release`, the
    others in `serve`."""

    def __init__(self, comm: MPI.Comm, root: int) -> None:
        self._comm, self._root, self._asked = comm, root, comm.Dup()
        self._others = [rank for rank in range(comm.Get_size()) if rank != root]

    def multiply(self, a: Any, b: Any, c: Any, out: Any, options: Mapping[str, Any]) -> Any:
        """At the root, `hybrid.multiply` by all ranks."""
        self._tell(options)
        return multiply(a, b, c, comm=self._comm, root=self._root, out=out, **options)

    def release(self) -> None:
        """At the root: the other ranks are done."""
        self._tell(None)
        self._asked.Free()

    def serve(self) -> None:
        """On the other ranks: multiply until the root releases them."""
        while (options := self._next()) is not None:
            try:
                multiply(None, None, comm=self._comm, root=self._root, **options)
            except HybridError as error:
                if not error.on_all_ranks:  # else the root knows of it, and goes on without this product
                    raise
        self._asked.Free()

    def _tell(self, options: Mapping[str, Any] | None) -> None:
        for rank in self._others:
            self._asked.send(options, rank)

    def _next(self) -> Mapping[str, Any] | None:
        began = time.monotonic()
        pauses = team_of(self._comm).messages.pauses(
            _EAGER, lambda: min(_LONGEST, _PART * (time.monotonic() - began)), lambda: None
        )
        while not self._asked.Iprobe(self._root):
            next(pauses)
        options: Mapping[str, Any] | None = self._asked.recv(source=self._root)
        return options
