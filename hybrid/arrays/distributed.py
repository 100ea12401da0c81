# SPDX-License-Identifier: MIT
"""What a rank's part of a distributed matrix has in common with an array, and what it has not.

Products are computed by all ranks, and what is computed element by element by each rank alone, without a message to the others.
Whatever would take this rank's elements for the whole matrix is refused.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np

from hybrid.arrays.interop import on_gpu
from hybrid.errors import NoArray, UsageError
from hybrid.ranks.launcher import launched

_NUMBERS = (int, float, complex, np.generic)


def _transposed(a: Any, axes: Sequence[int] | None = None) -> Any:
    """What numpy.transpose gives."""
    if axes is None or tuple(axes) in {(1, 0), (-1, 0), (1, -2), (-1, -2)}:
        return a.T
    raise UsageError(f"axes={axes} is no transpose of a {_kind(a)}, which is axes=(1, 0)", code="dimensions")


_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {  # NumPy's functions that need only what this rank knows, or are the product
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.iscomplexobj: lambda a: a.dtype.kind == "c",
    np.result_type: lambda *given: np.result_type(*(each.dtype if isinstance(each, Distributed) else each for each in given)),
    np.transpose: _transposed,
    np.dot: operator.matmul,
}


def _operator(ufunc: np.ufunc) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The operator that computes this function of NumPy element by element, and the one for an operand on the right."""
    return lambda a, b: a._by_elements(ufunc, (a, b)), lambda b, a: b._by_elements(ufunc, (a, b))


class Distributed(ABC):
    """A rank's part of a distributed matrix. `array`: this rank's elements; `comm`: the communicator for `@`, where it is
    known."""

    array: Any
    comm: Any = None
    ndim = 2
    _multiply: ClassVar[Callable[..., Any]]  # hybrid.multiply, which has to be above this room

    @property
    def dtype(self) -> np.dtype:
        """The type of the elements."""
        return np.dtype(self.array.dtype)

    @property
    def nbytes(self) -> int:
        """The bytes of this rank's elements."""
        return int(self.array.nbytes)

    @property
    def device(self) -> str:
        """Where this rank's elements are: "cpu", or such as "cuda:0"."""
        return f"cuda:{getattr(getattr(self.array, 'device', None), 'id', '?')}" if on_gpu(self.array) else "cpu"

    @property
    def _place(self) -> Any:
        """The place of these elements in the matrix, as far as it is known. Parts with different places are not combined."""
        return self.array.shape

    @abstractmethod
    def _like(self, array: Any, comm: Any) -> Any:
        """A part of the same kind and place, with other elements."""

    @property
    def _rank(self) -> str:
        """For repr: which rank of the communicator this is, where that is known."""
        return f", rank {self.comm.Get_rank()} of {self.comm.Get_size()}" if self.comm else ""  # a freed one is false

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name != "comm"
        }  # a communicator means nothing in another process

    __add__, __radd__ = _operator(np.add)
    __sub__, __rsub__ = _operator(np.subtract)
    __mul__, __rmul__ = _operator(np.multiply)
    __truediv__, __rtruediv__ = _operator(np.true_divide)
    __floordiv__, __rfloordiv__ = _operator(np.floor_divide)
    __mod__, __rmod__ = _operator(np.remainder)
    __pow__, __rpow__ = _operator(np.power)
    __lt__, __gt__ = _operator(np.less)
    __le__, __ge__ = _operator(np.less_equal)
    __eq__, _ = _operator(np.equal)  # type: ignore[assignment]
    __ne__, _ = _operator(np.not_equal)  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]  # like NumPy's arrays

    def __pos__(self) -> Any:
        return self._by_elements(np.positive, (self,))

    def __neg__(self) -> Any:
        return self._by_elements(np.negative, (self,))

    def __abs__(self) -> Any:
        return self._by_elements(np.absolute, (self,))

    def __bool__(self) -> NoReturn:
        raise UsageError(f"a {_kind(self)} has no truth value: .array.all() is that of this rank's elements", code="no-array")

    def __matmul__(self, other: Any) -> Any:
        if not isinstance(other, Distributed):
            return self._refused(other)
        comm = common_communicator([self, other])
        launch = launched()
        if comm is None and launch is not None and launch.size > 1:
            raise UsageError(
                f"a @ b knows no communicator: {_kind(self)}(..., comm=comm) names it, or hybrid.multiply(a, b, comm=comm)",
                code="communicator",
            )
        return Distributed._multiply(self, other, comm=comm)

    def __rmatmul__(self, other: Any) -> Any:
        return self._refused(other)

    def _by_elements(self, ufunc: np.ufunc, inputs: Sequence[Any]) -> Any:
        """What the function gives for this rank's elements. NotImplemented where an input is neither a number nor a part with
        the same place."""
        values = []
        for each in inputs:
            if isinstance(each, Distributed):
                self._refuse_elsewhere(each, ufunc.__name__)
                values.append(each.array)
            elif isinstance(each, _NUMBERS):
                values.append(each)
            elif isinstance(each, np.ndarray) and not each.ndim:  # NumPy compares its numbers as such arrays
                values.append(each[()])
            else:
                return self._refused(each)
        return self._like(ufunc(*values), common_communicator(inputs))

    def _refuse_elsewhere(self, other: Distributed, operation: str) -> None:
        if type(other) is not type(self):
            raise UsageError(
                f"a {_kind(self)} and a {_kind(other)} have no {operation} by elements, since a rank has other elements of the "
                "one than of the other: hybrid.scatter distributes rows anew",
                code="mixed-kinds",
            )
        if other._place != self._place:
            shapes = f"{self.array.shape} and {other.array.shape}"
            raise UsageError(
                f"{_kind(self)}s of shapes {shapes} have no {operation} by elements: each rank must have the same rows and "
                "columns of both",
                code="shapes",
            )
        if self.device != other.device:
            raise UsageError(
                f"the {_kind(self)}s lie on {self.device} and {other.device}: copy the array of one of them", code="mixed-kinds"
            )

    def _refused(self, other: Any) -> Any:
        """NotImplemented, or for an array a NoArray that says why it cannot be combined with this."""
        if hasattr(other, "__array__"):
            raise NoArray(
                f"a {_kind(self)} and an array do not go together, since other ranks have the rest of the {_kind(self)}: "
                f"make this rank's elements of the other a {_MADE_AS.get(_kind(self), _kind(self))}, or take .array"
            )
        return NotImplemented

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise self._no_array(f"a {_kind(self)} is no array")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        """What NumPy's functions give: the product, and what is computed element by element. NoArray for all others."""
        computed = NotImplemented
        if method == "__call__" and not more and ufunc is np.matmul:
            left, right = inputs
            computed = left @ right if isinstance(left, Distributed) else self._refused(left)
        elif method == "__call__" and not more and ufunc.signature is None and ufunc.nout == 1:
            computed = self._by_elements(ufunc, inputs)
        if computed is not NotImplemented:
            return computed
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise self._no_array(f"numpy.{name} takes no {_kind(self)}")

    def __array_function__(self, function: Any, types: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if function in _FUNCTIONS:
            return _FUNCTIONS[function](*given, **named)
        raise self._no_array(f"{function.__module__}.{function.__name__} takes no {_kind(self)}")

    def _no_array(self, what: str) -> NoArray:
        how = "hybrid.gather brings them to one; take .array for this rank's"
        return NoArray(f"{what}, since other ranks have the rest of its elements: {how}")


def _kind(part: Any) -> str:
    return type(part).__name__


_MADE_AS = {"TransposedRowBlock": "RowBlock, and take its .T"}  # of what is no public class


def common_communicator(inputs: Sequence[Any]) -> Any:
    """The communicator that the inputs know; None where none of them does. UsageError where they know different ones."""
    knowing = [each for each in inputs if isinstance(each, Distributed) and each.comm is not None]
    if any(each.comm != knowing[0].comm for each in knowing):
        raise UsageError(
            f"the {_kind(knowing[0])}s are of different communicators: hybrid.multiply(a, b, comm=comm) says by which",
            code="communicator",
        )
    return knowing[0].comm if knowing else None
