# SPDX-License-Identifier: MIT
"""Tables of what GPU models have: cores, multiprocessors, memory, compute capability, limits; as CUDA's deviceQuery prints
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybrid.classroom.gpu_models import CONSTANT_BYTES, KB, MODELS, WARP, GpuModel


def of_name(device: str) -> GpuModel | None:
    """The model of a GPU that the driver calls so, such as NVIDIA A100-SXM4-80GB; None where we do not have it."""
    words = device.replace(" ", "").upper()
    return max((model for model in MODELS if model.name.upper() in words), key=lambda model: len(model.name), default=None)


def table(here: Sequence[GpuModel] = ()) -> Iterator[str]:
    """The lines of a table of all models, with a mark at those of this machine, which are in `here`."""
    heads = (
        "GPU",
        "capability",
        "SMs",
        "cores",
        "memory",
        "GB/s",
        "float32",
        "float64",
        "threads",
        "blocks",
        "registers",
        "shared",
    )
    rows = [(("> " if model in here else "  ") + model.name, *_numbers(model)) for model in MODELS]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        yield "  ".join(f"{cell:{'>' if index else '<'}{widths[index]}}" for index, cell in enumerate(row))
    yield "float32, float64: GF/s without matrix units"
    yield "threads, blocks, registers and shared memory, in KiB: what a multiprocessor (SM) holds"


def _numbers(model: GpuModel) -> tuple[str, ...]:
    holds = model.multiprocessor
    counts = (model.multiprocessors, model.cores)
    rates = (model.bandwidth, model.float32, model.float64)
    return (
        model.version, *map(str, counts), f"{model.memory:g} GB", *(f"{rate:,}" if rate else "–" for rate in rates),
        *map(str, (holds.threads, holds.blocks, holds.registers, holds.shared // KB)),
    )  # fmt: skip


def detail(model: GpuModel) -> Iterator[str]:
    """The lines about one model, one for each property."""
    holds = model.multiprocessor
    rates = f"{model.float32:,} GF/s in float32, " + (f"{model.float64:,} in float64" if model.float64 else "none in float64")
    lines = {
        "compute capability": model.version,
        "multiprocessors": str(model.multiprocessors),
        "cores": f"{model.cores:,}, {model.cores_each} of a multiprocessor",
        "global memory": f"{model.memory:g} GB, {model.bandwidth:,} GB/s",
        "arithmetic": f"{rates}, without matrix units",
        "a warp": f"{WARP} threads",
        "most threads of a block": f"{holds.most_threads:,}",
        "resident on a multiprocessor": f"{holds.threads} threads ({holds.threads // WARP} warps), {holds.blocks} blocks",
        "registers of a multiprocessor": f"{holds.registers:,}, at most {holds.most_registers} a thread",
        "shared memory of a multiprocessor": f"{holds.shared // KB} KiB",
        "constant memory": f"{CONSTANT_BYTES // KB} KiB",
    }
    width = max(map(len, lines))
    yield f"{model.name}"
    yield from (f"  {name:<{width}}  {value}" for name, value in lines.items())
