# SPDX-License-Identifier: MIT
"""A product's sizes, types and bytes; ranges of rows or columns; which rank of which node has which rows; how rows are aligned
for a GPU's vector loads. And `@record`, the frozen dataclass of all packages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar

from hybrid.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform  # typing has it since Python 3.11

    _Class = TypeVar("_Class")

    @dataclass_transform(frozen_default=True, field_specifiers=(field,))
    def record(cls: type[_Class]) -> type[_Class]:
        """`dataclass(frozen=True)`."""
        return cls
else:
    record = dataclass(frozen=True)


ITEM_SIZES = {"float32": 4, "float64": 8}  # the types in which products are computed, and their bytes
_SHORT_OPERANDS = {"float16": 2, "bfloat16": 2}  # types of A and B with C in float32, and their bytes
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# The types of a user's matrices. Products of types that are not in ITEM_SIZES are computed as real products of one that is.
DTYPES = ("bool", *INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64", "complex128")
FILLS = ("lecture", "uniform", "normal", "index")  # the matrices that the command generates
LARGEST_SIZE = (1 << 63) - 1  # rows or columns: the limit of NumPy's and MPI's indices
WIDEST_COPY = 16  # bytes of a GPU's widest load or store (float4); rows of its buffers are aligned to it


@record
class Problem:
    """C (n×m) = A (n×l) · B (l×m). BLAS's names for n, m and l are M, N and K.

    `dtype`: of C and of all sums. `short_operands`: the 16-bit type of A and B; empty if they are of `dtype`, too. `symmetric`: B
    is the transpose of A, and one triangle of C is computed and mirrored: "A" or "B" is the operand that is stored, by rows;
    "AB": both are. `is_complex`: A holds the parts of complex numbers, and B is expanded (hybrid/arrays/gemm.py); `conjugates`:
    for the conjugates of A.
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
        return ITEM_SIZES[self.dtype]

    @property
    def operand_dtype(self) -> str:
        return self.short_operands or self.dtype

    @property
    def operand_item_size(self) -> int:
        return _SHORT_OPERANDS[self.short_operands] if self.short_operands else self.item_size

    @property
    def operations(self) -> int:
        """Floating-point operations: n·l·m multiplications and as many additions."""
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

    def __str__(self) -> str:
        return f"{self.n}×{self.l} · {self.l}×{self.m} {self.operand_dtype}"


def padded(columns: int, item_size: int) -> int:
    """The row stride, in elements, of a GPU's buffer with these columns: it aligns every row for the widest copies."""
    in_a_copy = WIDEST_COPY // item_size
    return -(-columns // in_a_copy) * in_a_copy


def is_aligned(*addresses_and_strides: int) -> bool:
    """Whether these addresses and row strides (in bytes) allow the widest copies."""
    return not any(number % WIDEST_COPY for number in addresses_and_strides)


def copy_width(item_size: int, addresses_and_strides: Iterable[int]) -> int:
    """Elements of the widest vector copy that these addresses and row strides (in bytes) allow."""
    numbers = list(addresses_and_strides)
    width = WIDEST_COPY // item_size
    while width > 1 and any(number % (width * item_size) for number in numbers):
        width //= 2
    return width


# --- ranges of rows or columns, and the ranks that have them


@record
class Span:
    """The rows, or columns, from `lo` to `hi` - 1."""

    lo: int
    hi: int

    def __lt__(self, other: Span) -> bool:
        return (self.lo, self.hi) < (other.lo, other.hi)

    def __len__(self) -> int:
        return self.hi - self.lo

    def __str__(self) -> str:
        return f"{self.lo}:{self.hi}"

    def meets(self, other: Span) -> bool:
        return self.lo < other.hi and other.lo < self.hi

    def lies_in(self, other: Span) -> bool:
        return other.lo <= self.lo and self.hi <= other.hi

    def common(self, other: Span) -> Span:
        """The intersection, perhaps empty."""
        lo = max(self.lo, other.lo)
        return Span(lo, max(lo, min(self.hi, other.hi)))

    def part(self, parts: int, number: int) -> Span:
        """Part `number` of `parts` parts, whose lengths differ by at most one."""
        of_length = block(len(self), parts, number)
        return Span(self.lo + of_length.lo, self.lo + of_length.hi)

    @property
    def slice(self) -> slice:
        return slice(self.lo, self.hi)

    def moved(self, by: int) -> Span:
        return Span(self.lo + by, self.hi + by)

    def within(self, other: Span) -> Span:
        """The same span counted from the start of `other`."""
        return Span(self.lo - other.lo, self.hi - other.lo)


def block(total: int, parts: int, part: int) -> Span:
    """Block number `part` of `total` rows in `parts` blocks whose sizes differ by at most one row."""
    size, longer = divmod(total, parts)
    lo = part * size + min(part, longer)
    return Span(lo, lo + size + (part < longer))


def pieces(span: Span, size: int) -> Iterator[Span]:
    """`span` in consecutive pieces of `size`; the last may be shorter. None for an empty span."""
    for lo in range(span.lo, span.hi, size):
        yield Span(lo, min(lo + size, span.hi))


def even_pieces(span: Span, at_most: int) -> tuple[Span, ...]:
    """`span` in the fewest pieces of at most `at_most`, whose sizes differ by at most one; none for an empty span."""
    parts = -(-len(span) // max(1, at_most))
    return tuple(span.part(parts, number) for number in range(parts))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The spans in order, with those that follow each other without a gap joined into one."""
    runs: list[Span] = []
    for span in sorted(spans):
        if runs and runs[-1].hi == span.lo:
            runs[-1] = Span(runs[-1].lo, span.hi)
        else:
            runs.append(span)
    return runs


def consecutive(lengths: Iterable[int]) -> list[Span]:
    """Spans of these lengths, one after the other from 0."""
    return [Span(*bounds) for bounds in pairwise(accumulate(lengths, initial=0))]


def alike(names: Iterable[object]) -> tuple[tuple[int, ...], ...]:
    """The positions of equal names, grouped, in the order of first appearance."""
    found: dict[object, list[int]] = {}
    for position, name in enumerate(names):
        found.setdefault(name, []).append(position)
    return tuple(map(tuple, found.values()))


@record
class Topology:
    """The ranks of each node. The ranks of a node share memory; the first of them is its leader."""

    nodes: tuple[tuple[int, ...], ...]

    @classmethod
    def of_equal_nodes(cls, ranks: int, ranks_per_node: int) -> Topology:
        """Nodes of `ranks_per_node` ranks; the last one may have fewer."""
        return cls(tuple(tuple(range(piece.lo, piece.hi)) for piece in pieces(Span(0, ranks), ranks_per_node)))

    def split(self, ranks_per_node: int) -> Topology:
        """Every node split into nodes of at most `ranks_per_node` ranks."""
        starts = [(ranks, start) for ranks in self.nodes for start in range(0, len(ranks), ranks_per_node)]
        return Topology(tuple(ranks[start : start + ranks_per_node] for ranks, start in starts))

    @cached_property
    def _positions(self) -> dict[int, tuple[int, int]]:
        """Each rank's node, and its position in the list of ranks node by node."""
        by_node = [(rank, node) for node, ranks in enumerate(self.nodes) for rank in ranks]
        return {rank: (node, position) for position, (rank, node) in enumerate(by_node)}

    @property
    def size(self) -> int:
        return len(self._positions)

    def node_of(self, rank: int) -> int:
        return self._positions[rank][0]

    def rows_of_rank(self, rank: int, total: int) -> Span:
        """The rank's row block. Blocks are in the order of nodes, so that the rows of any node are consecutive."""
        return block(total, self.size, self._positions[rank][1])

    def rows_of_node(self, node: int, total: int) -> Span:
        """The consecutive rows of the node's ranks."""
        ranks = self.nodes[node]
        return Span(self.rows_of_rank(ranks[0], total).lo, self.rows_of_rank(ranks[-1], total).hi)
