# SPDX-License-Identifier: MIT
"""What can be computed with RowBlocks: products by all ranks, and elements by each rank, for itself."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import numpy as np

from hybrid.errors import NoArray, UsageError
from hybrid.ranks.launcher import launched

_OPERATORS = {  # by NumPy's functions
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.true_divide: "truediv",
    np.equal: "eq",
    np.not_equal: "ne",
    np.matmul: "matmul",
}


class Operators(ABC):
    """`@` multiplies, by all ranks. With numbers, and between RowBlocks of the same rows, `+ - * / == !=` work by elements, on
    each rank without a word to the others.
    """

    array: Any
    comm: Any
    device: str
    multiply: ClassVar[Callable[..., Any]]  # hybrid.multiply, which has to be above this room

    def __matmul__(self, other: Any) -> Any:
        if not isinstance(other, Operators):
            return self._refused(other)
        comm = _common_communicator(self, other)
        launch = launched()
        if comm is None and launch is not None and launch.size > 1:
            raise UsageError(
                "a @ b knows no communicator: RowBlock(rows, comm) names it, and so does hybrid.multiply(a, b, comm=comm)"
            )
        return Operators.multiply(self, other, comm=comm)

    def __add__(self, other: Any) -> Any:
        return self._by_elements(operator.add, other)

    def __radd__(self, other: Any) -> Any:
        return self._by_elements(operator.add, other, reflected=True)

    def __sub__(self, other: Any) -> Any:
        return self._by_elements(operator.sub, other)

    def __rsub__(self, other: Any) -> Any:
        return self._by_elements(operator.sub, other, reflected=True)

    def __mul__(self, other: Any) -> Any:
        return self._by_elements(operator.mul, other)

    def __rmul__(self, other: Any) -> Any:
        return self._by_elements(operator.mul, other, reflected=True)

    def __truediv__(self, other: Any) -> Any:
        return self._by_elements(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._by_elements(operator.truediv, other, reflected=True)

    def __neg__(self) -> Any:
        return self._like(-self.array, self.comm)

    def __eq__(self, other: object) -> Any:
        return self._by_elements(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._by_elements(operator.ne, other)

    __hash__ = None  # type: ignore[assignment]  # as NumPy's arrays

    def __bool__(self) -> NoReturn:
        raise UsageError("a RowBlock has no truth value: .array.all() is that of this rank's elements")

    @abstractmethod
    def _like(self, array: Any, comm: Any) -> Any:
        """Of the same kind, with other elements."""

    def _by_elements(self, operation: Callable[[Any, Any], Any], other: Any, *, reflected: bool = False) -> Any:
        if isinstance(other, Operators):
            comm, value = _common_communicator(self, other), other.array
            if type(other) is not type(self):
                raise UsageError(
                    f"a RowBlock and a transposed one have no {operation.__name__} by elements, since a rank has rows of one and "
                    "columns of the other: hybrid.scatter(a.T) gives rows"
                )
            if value.shape != self.array.shape:
                shapes = f"{self.array.shape} and {value.shape}"
                raise UsageError(
                    f"RowBlocks of shapes {shapes} have no {operation.__name__} by elements: each rank must have the same of both"
                )
            if self.device != other.device:
                raise UsageError(f"the RowBlocks lie on {self.device} and {other.device}: copy the array of one of them")
        elif isinstance(other, (int, float, complex, np.number, np.bool_)):
            comm, value = self.comm, other
        else:
            return self._refused(other)
        pair = (value, self.array) if reflected else (self.array, value)
        return self._like(operation(*pair), comm)

    def _by_ufunc(self, ufunc: np.ufunc, inputs: tuple[Any, ...]) -> Any:
        """As the operator, also where a number of NumPy's or an array stands on the left."""
        if ufunc is np.negative:
            return -self
        if ufunc not in _OPERATORS:
            return NotImplemented
        # NumPy compares its numbers as arrays of no dimension.
        left, right = (each[()] if isinstance(each, np.ndarray) and not each.ndim else each for each in inputs)
        name = _OPERATORS[ufunc]
        if isinstance(left, Operators):
            return getattr(left, f"__{name}__")(right)
        reflected = name if name in ("eq", "ne") else f"r{name}"
        return getattr(right, f"__{reflected}__")(left)

    def __rmatmul__(self, other: Any) -> Any:
        return self._refused(other)

    def _refused(self, other: Any) -> Any:
        if hasattr(other, "__array__"):
            raise NoArray(
                f"a RowBlock and a {type(other).__name__} do not go together, since other ranks have the rest of the RowBlock's "
                "elements: make this rank's rows of the other a RowBlock, or take .array"
            )
        return NotImplemented


def _common_communicator(a: Operators, b: Operators) -> Any:
    """The one that is known; None where none is."""
    known = [each.comm for each in (a, b) if each.comm is not None]
    if len(known) > 1 and known[0] != known[1]:
        raise UsageError(
            "the RowBlocks are of different communicators: hybrid.multiply(a, b, comm=comm) says by which to multiply"
        )
    return known[0] if known else None
