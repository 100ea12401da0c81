# SPDX-License-Identifier: MIT
"""What a rank's part of a distributed matrix has in common with an array, and what not."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import numpy as np

from hybrid.arrays.interop import on_gpu
from hybrid.errors import NoArray


class Distributed:
    """`array`: this rank's elements. NumPy's functions, which would take them for the whole matrix, are refused."""

    array: Any
    ndim = 2
    how_gathered: ClassVar[str] = ""  # what brings all elements together

    @property
    def dtype(self) -> np.dtype:
        """The elements' type."""
        return np.dtype(self.array.dtype)

    @property
    def nbytes(self) -> int:
        """Of this rank's elements."""
        return int(self.array.nbytes)

    @property
    def device(self) -> str:
        """Where this rank's elements are: "cpu", or as "cuda:0"."""
        return f"cuda:{getattr(getattr(self.array, 'device', None), 'id', '?')}" if on_gpu(self.array) else "cpu"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        refused = f"a {type(self).__name__} is no array, since other ranks have the rest of its elements"
        raise NoArray(f"{refused}: {self.how_gathered}take .array for this rank's")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        """Of NumPy's functions those that are operators of this class."""
        computed = self._by_ufunc(ufunc, inputs) if method == "__call__" and not more else NotImplemented
        if computed is not NotImplemented:
            return computed
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        refused = f"numpy.{name} takes no {type(self).__name__}, since other ranks have the rest of its elements"
        raise NoArray(f"{refused}: {self.how_gathered}take .array for this rank's")

    def _by_ufunc(self, ufunc: np.ufunc, inputs: tuple[Any, ...]) -> Any:
        return NotImplemented
