# SPDX-License-Identifier: MIT
"""One product in numbers: its sizes, its types, its bytes, and how rows are aligned for a GPU's vector loads; and `@record`, the
frozen dataclass in which all rooms keep such numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from hybrid.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """typing has it since Python 3.11; only type checkers read it."""
        return lambda decorator: decorator


_Class = TypeVar("_Class", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: _Class) -> _Class:
    """Make the class what `dataclass(frozen=True)` makes of it, in a fraction of the time: that compiles six functions for every
    class, which took half of the time in which a command's modules were imported. Here only `__init__` is compiled.

    Of the arguments of `field` it understands default, default_factory, compare and metadata. `dataclasses.replace`, `fields` and
    `asdict` work on records. A record inherits no fields.
    """
    made: Any = cls
    specified: dict[str, Any] = {}  # a Field each
    for name, annotation in made.__annotations__.items():
        if not annotation.startswith("ClassVar"):
            value = made.__dict__.get(name, MISSING)
            specified[name] = each = value if isinstance(value, Field) else field(default=value)
            if each.default is not MISSING:
                setattr(made, name, each.default)
            elif each is value:
                delattr(made, name)
            each.name, each.type, each._field_type = name, annotation, dataclasses._FIELD  # type: ignore[attr-defined,union-attr]
    compared = [name for name, each in specified.items() if each.compare]
    # A function that returns these fields as a tuple, as fast as compiled code.
    values = attrgetter(*compared) if len(compared) > 1 else lambda self: tuple(getattr(self, name) for name in compared)
    made.__dataclass_fields__ = specified  # what functions of `dataclasses` look for
    made.__init__ = _compiled_init(made, specified)
    made.__setattr__ = made.__delattr__ = _refuse
    made.__repr__ = lambda self: f"{made.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in specified)})"
    made.__eq__ = lambda self, other: values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented
    made.__hash__ = lambda self: hash(values(self))
    return cls


def _compiled_init(cls: Any, specified: dict[str, Any]) -> Any:
    """An `__init__` that sets the fields of the frozen class, and calls its `__post_init__` if it has one."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    parameters, body = ["self"], []
    for name, each in specified.items():
        value = name
        if each.default is not MISSING:
            known[f"_default_{name}"] = each.default
            parameters.append(f"{name}=_default_{name}")
        elif each.default_factory is not MISSING:
            known[f"_make_{name}"] = each.default_factory
            parameters.append(f"{name}=_MISSING")
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        else:
            parameters.append(name)
        body.append(f" _set(self, {name!r}, {value})\n")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()\n")
    exec(f"def __init__({', '.join(parameters)}):\n{''.join(body) or ' pass'}", known)  # noqa: S102 (names of fields alone)
    return known["__init__"]


def _refuse(self: object, name: str, *value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot change field {name!r}")


ITEM_SIZES = {"float32": 4, "float64": 8}  # bytes of the numbers in which products are computed
_SHORT_OPERANDS = {"float16": 2, "bfloat16": 2}  # bytes of the elements of A and B, where C is computed in float32
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# The types of a user's matrices. Products of those that are not in ITEM_SIZES are computed as real products of a type that is.
DTYPES = ("bool", *INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64", "complex128")
FILLS = ("lecture", "uniform", "normal", "index")  # the matrices that the command generates
LARGEST_SIZE = (1 << 63) - 1  # rows or columns that the indices of NumPy and MPI can count
WIDEST_COPY = 16  # bytes of a GPU's widest load or store, as of a float4; rows of its buffers are aligned to it


@record
class Problem:
    """C (n×m) = A (n×l) · B (l×m). BLAS's names for n, m and l are M, N and K.

    `dtype`: the type of C and of all sums. `short_operands`: the type of A and B where that has 16 bits; empty where A and B are
    of `dtype`, too. `symmetric`: where B is the transpose of A, and one triangle of C
    is computed and mirrored: "A" or "B", the operand that lies by rows, whose transpose is the other; "AB": both are there.
    `is_complex`: A's numbers are the parts of complex ones, and B is expanded (hybrid/arrays/gemm.py); `conjugates`: for the
    conjugates of A's.
    """

    n: int
    l: int
    m: int
    dtype: str = "float64"
    short_operands: str = ""
    symmetric: str = ""
    is_complex: bool = False
    conjugates: bool = False

    def __post_init__(self) -> None:
        for name, size in (("n", self.n), ("l", self.l), ("m", self.m)):
            if size < 0:
                raise UsageError(f"{name} must not be negative, not {size}", code="sizes")
            if size > LARGEST_SIZE:
                raise UsageError(f"{name} must be less than 2⁶³, not {size}", code="sizes")
        if self.dtype not in ITEM_SIZES:
            raise UsageError(f"dtype {self.dtype} cannot be multiplied here: float32 and float64 can", code="dtype")
        assert not self.short_operands or (self.dtype == "float32" and self.short_operands in _SHORT_OPERANDS)

    @property
    def item_size(self) -> int:
        """Bytes of an element of C."""
        return ITEM_SIZES[self.dtype]

    @property
    def operand_dtype(self) -> str:
        """The type of A and B."""
        return self.short_operands or self.dtype

    @property
    def operand_item_size(self) -> int:
        """Bytes of an element of A or B."""
        return _SHORT_OPERANDS[self.short_operands] if self.short_operands else self.item_size

    @property
    def operations(self) -> int:
        """The floating-point operations of the product: n·l·m multiplications and as many additions."""
        return 2 * self.n * self.l * self.m

    def bytes(self, rows: int, columns: int) -> int:
        """The bytes of a part of C of this shape."""
        return rows * columns * self.item_size

    def operand_bytes(self, rows: int, columns: int) -> int:
        """The bytes of a part of A or B of this shape."""
        return rows * columns * self.operand_item_size

    @property
    def bytes_of_matrices(self) -> int:
        of_b = 0 if self.symmetric else self.operand_bytes(self.l, self.m)
        return self.operand_bytes(self.n, self.l) + of_b + self.bytes(self.n, self.m)

    def with_operands(self, short: str) -> Problem:
        """The same product of operands of this type of 16 bits; with "", of operands of C's own type."""
        return replace(self, short_operands=short)

    @property
    def whole(self) -> Problem:
        """The same product of two matrices of which nothing is known: all of C is computed."""
        return replace(self, symmetric="")

    def __str__(self) -> str:
        return f"{self.n}×{self.l} · {self.l}×{self.m} {self.operand_dtype}"


@record
class AskedProduct:
    """The product that a user asked for. Where its numbers are complex or integers, a `Problem` is the real product that gives
    it."""

    n: int
    l: int
    m: int
    dtype: str


def padded(columns: int, item_size: int) -> int:
    """The row stride, in elements, of a GPU's buffer with this number of columns: it aligns every row for the widest copies."""
    in_a_copy = WIDEST_COPY // item_size
    return -(-columns // in_a_copy) * in_a_copy


def is_aligned(*addresses_and_strides: int) -> bool:
    """Whether all these addresses and row strides, in bytes, allow the widest copies."""
    return not any(number % WIDEST_COPY for number in addresses_and_strides)


def copy_width(item_size: int, addresses_and_strides: Iterable[int]) -> int:
    """Elements of the widest vector copy for which all these addresses and row strides (in bytes) are aligned."""
    numbers = list(addresses_and_strides)
    width = WIDEST_COPY // item_size
    while width > 1 and any(number % (width * item_size) for number in numbers):
        width //= 2
    return width
