"""A product's sizes and type, and the bytes they come to."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.errors import UsageError

ITEM_SIZES = {"float32": 4, "float64": 8}
WIDEST_COPY = 16  # bytes a CUDA thread loads at once at most; rows of a GPU's buffers begin at multiples of it


@dataclass(frozen=True)
class Problem:
    """C (n×m) = A (n×l) · B (l×m). BLAS calls n, m, l M, N, K."""

    n: int
    l: int
    m: int
    dtype: str = "float64"

    def __post_init__(self) -> None:
        for name, size in (("n", self.n), ("l", self.l), ("m", self.m)):
            if size < 0:
                raise UsageError(f"{name} must not be negative, not {size}")
        if self.dtype not in ITEM_SIZES:
            raise UsageError(f"dtype {self.dtype} cannot be multiplied here: float32 and float64 can")

    @property
    def item_size(self) -> int:
        return ITEM_SIZES[self.dtype]

    @property
    def operations(self) -> int:
        """n·l·m multiplications and as many additions."""
        return 2 * self.n * self.l * self.m

    def bytes(self, rows: int, columns: int) -> int:
        return rows * columns * self.item_size

    @property
    def bytes_of_matrices(self) -> int:
        return self.bytes(self.n, self.l) + self.bytes(self.l, self.m) + self.bytes(self.n, self.m)

    def __str__(self) -> str:
        return f"{self.n}×{self.l} · {self.l}×{self.m} {self.dtype}"


def padded(columns: int, item_size: int) -> int:
    """The columns of a GPU's buffer for `columns` columns: its rows begin at multiples of WIDEST_COPY."""
    multiple = WIDEST_COPY // item_size
    return -(-columns // multiple) * multiple
