"""What the pipeline asks of a device: buffers, copies in and out, multiplications, and the order between them."""

from __future__ import annotations

from typing import Any, Protocol

# A mark stands for a piece of work handed to the device: a thing other work can be ordered after.
Mark = Any


class Device(Protocol):
    """One rank's GPU, or its share of the CPU. Work is handed over in order and may run later; `finish` waits for it.

    Work of one kind (copy in, multiply, copy out) runs in the order it was handed over; between the kinds only the
    marks order it.
    """

    name: str  # "cpu", "cuda" or "emulate"
    staged: bool  # False: it multiplies host matrices where they lie, and copies nothing

    def buffer(self, rows: int, columns: int, dtype: str) -> Any:
        """Memory of the device, its contents undefined."""

    def copy_in(self, into: Any, source: Any) -> Mark:
        """Host rows into a buffer (or a part of one)."""

    def multiply(self, a: Any, b: Any, c: Any, after: list[Mark]) -> Mark:
        """c = a · b, once `after` is done. The three may be parts of buffers: rows contiguous, any distance apart."""

    def copy_out(self, into: Any, source: Any, after: list[Mark]) -> Mark:
        """A part of a buffer into host memory, once `after` is done."""

    def finish(self) -> list[tuple[str, float, float]]:
        """Wait for all work; for each piece of it its phase and when it ran, on this rank's clock (perf_counter)."""
