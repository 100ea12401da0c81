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
    __array_ufunc__ = None  # Python then refuses operators with NumPy's arrays: a TypeError

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
