"""The catalogue: one line a kernel. A name, the device it runs on, the types it takes, and what it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """An entry of the catalogue."""

    name: str
    device: str  # "cpu" or "cuda"
    dtypes: tuple[str, ...]
    summary: str


BOTH = ("float32", "float64")

CATALOGUE = (
    Kernel("blas", "cpu", BOTH, "the BLAS library NumPy was built with"),
    Kernel("cublas", "cuda", BOTH, "NVIDIA's library, the yardstick"),
)


@dataclass(frozen=True)
class Choice:
    """A kernel and why it was taken."""

    kernel: Kernel
    reason: str


def kernels_for(device: str) -> list[Kernel]:
    return [kernel for kernel in CATALOGUE if kernel.device == device]


def named(name: str) -> Kernel | None:
    return next((kernel for kernel in CATALOGUE if kernel.name == name), None)


def fastest(device: str, dtype: str) -> Choice:
    """What `auto` stands for."""
    kernel = next(kernel for kernel in kernels_for(device) if dtype in kernel.dtypes)
    return Choice(kernel, f"the fastest for {dtype} on {device}")
