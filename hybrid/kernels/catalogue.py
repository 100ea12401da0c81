# SPDX-License-Identifier: MIT
"""The catalogue of kernels: what each needs, how it is compiled and launched, and why `auto` would choose it."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hybrid.core.problem import record
from hybrid.errors import UsageError

if TYPE_CHECKING:
    import numpy as np  # functions import it, since commands load it only when the number of threads is settled

# The folder of the CUDA sources: in an installed package beside this file, in a checkout the top-level kernels/.
_INSTALLED = Path(__file__).resolve().parent / "cuda"
KERNELS = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[2] / "kernels"

_BITS = "uint16"  # the type of arrays of bfloat16, which neither NumPy nor CuPy has


def storage(dtype: str) -> np.dtype:
    """The type of an array that holds elements of this type."""
    import numpy as np

    return np.dtype(_BITS if dtype == "bfloat16" else dtype)


def elements_of(array: Any) -> Any:
    """The array; one of bfloat16, of the package ml_dtypes, as its bits."""
    return array.view(_BITS) if array.dtype.name == "bfloat16" else array


def numbers_of(elements: Any) -> Any:
    """The elements as numbers of a type that NumPy computes with."""
    return (elements.astype("uint32") << 16).view("float32") if elements.dtype == _BITS else elements


def c_type(elements: Any) -> str:
    """The kernels' name of the type of an array's elements."""
    return _IN_CPP[elements.dtype.name]


BOTH = ("float32", "float64")
HALVES = ("float16", "bfloat16")  # of A and B alone: their sums, and C, are float32
C_TYPES = {"float32": "float", "float64": "double"}
BYTES = ("int8",)  # of A and B alone: their sums, and C, are int32. No product of the runner is of this type
ELEMENTS = C_TYPES | {"float16": "Float16", "bfloat16": "Bfloat16"}  # of A and B of the runner's products, in C++
OPERAND_SIZES = {"float32": 4, "float64": 8} | dict.fromkeys(HALVES, 2) | dict.fromkeys(BYTES, 1)  # bytes of an element of A or B
_IN_CPP = ELEMENTS | {_BITS: "Bfloat16", "int8": "signed char"}  # by the type of A and B, or of an array
MOST_BLOCKS_Y = 65535  # CUDA's limit of gridDim.y
LEAST_CAPABILITY = 60  # compute capability, times ten, as all capabilities here
EMULATED_CAPABILITY = 90  # of the emulated GPU
ALL = 0


@record
class Form:
    """One instance of a kernel's template, and its launch configuration."""

    tile: tuple[int, int]  # the thread-block tile: rows and columns of C that a block computes; or ALL of them
    block: tuple[int, int]  # threads per block, x and y
    arguments: str = ""  # of the template, after the element type
    shared: int = 0  # dynamic shared memory, in elements of A and B
    capability: int = LEAST_CAPABILITY  # the least it runs on
    by_width: bool = False  # the template's last argument is the width of vector loads and copies, in elements
    linear_grid: bool = False  # all blocks along x: the kernel itself maps blockIdx.x to a tile


@record
class Kernel:
    """An entry of the catalogue."""

    name: str
    device: str  # "cpu" or "cuda"
    summary: str
    source: str = ""  # the .cu file; empty for kernels of libraries and of the CPU
    forms: dict[str, tuple[Form, ...]] = field(default_factory=dict, compare=False)  # by A's and B's dtype, the fastest first
    function: str = ""  # of the template, if not the kernel's name
    dtypes: tuple[str, ...] = BOTH
    vectors_only: bool = False  # B must have one column
    adds: bool = False  # it can also compute C += A · B, if the template's last argument is true
    reason: str = ""  # why auto chooses it

    def runs_on(self, device: str) -> bool:
        """Whether it runs on this device. Kernels with a source also run on "emulate", the emulated GPU."""
        return device == self.device or (device == "emulate" and bool(self.source))


@record
class Launch:
    """An instance to be compiled, and its launch configuration."""

    source: str
    expression: str  # the instance's name expression, as tiled<double, 16>
    grid: tuple[int, ...]
    block: tuple[int, int]
    shared_bytes: int
    architecture: str = ""  # the only one it runs on, such as sm_90a; empty: any
    cluster: int = 1  # thread blocks of a cluster
    # Runs beside products, and divides an SM's memory as they do: with another division it would wait until the SM is idle.
    prefers_shared: bool = False


def _both(*forms: Form) -> dict[str, tuple[Form, ...]]:
    return dict.fromkeys(BOTH, forms)


def _linear(tile: tuple[int, int], arguments: str, shared: int = 0, capability: int = LEAST_CAPABILITY) -> Form:
    return Form(tile, (256, 1), arguments, shared, capability, by_width=True, linear_grid=True)


def _tensor(stages: int, capability: int) -> Form:
    arguments = f"128, 128, 16, 64, 32, {stages}, 1"
    return _linear((128, 128), arguments, stages * 16 * 256, capability)


def _tensor_wide(depth: int, capability: int) -> Form:
    """For operands of 16 and of 8 bits. `depth`: of a stage along k."""
    return _linear((128, 256), f"128, 256, {depth}, 64, 64, 4, 1", 4 * depth * (128 + 256), capability)


CATALOGUE = (
    Kernel("blas", "cpu", "the BLAS library NumPy was built with", adds=True, reason="the CPU's fastest"),
    Kernel("loops", "cpu", "three loops in C on one core, i j k; auto never chooses it"),
    Kernel("loops_ikj", "cpu", "the same with k before j; auto never chooses it"),
    Kernel("naive", "cuda", "one thread per element of C", "naive.cu", _both(Form((16, 16), (16, 16)))),
    Kernel("row_per_thread", "cuda", "one thread per row of C", "row_per_thread.cu", _both(Form((128, ALL), (128, 1)))),
    Kernel("column_per_thread", "cuda", "one thread per column of C", "column_per_thread.cu", _both(Form((ALL, 128), (128, 1)))),
    Kernel("matvec", "cuda", "matrix × vector, one thread per element", "matvec.cu", _both(Form((128, ALL), (128, 1))),
           vectors_only=True),
    Kernel("matvec_warp", "cuda", "matrix × vector, one warp per element", "matvec.cu", _both(Form((8, ALL), (32, 8))),
           vectors_only=True, reason="B is a vector: A is read once, by coalesced loads"),
    Kernel("tiled", "cuda", "16×16 tiles in shared memory", "tiled.cu", _both(Form((16, 16), (16, 16), "16"))),
    Kernel("tiled32", "cuda", "32×32 tiles in shared memory", "tiled.cu", _both(Form((32, 32), (32, 32), "32")), "tiled"),
    Kernel("register_tiled", "cuda", "a register tile of C per thread, 16-byte vector loads", "register_tiled.cu",
           {"float32": (_linear((128, 64), "128, 64, 8, 8, 4"),), "float64": (_linear((128, 128), "128, 128, 8, 8, 8"),)},
           adds=True, reason="runs on every GPU"),
    Kernel("pipelined", "cuda", "a pipeline of asynchronous copies (cp.async), swizzled shared memory", "pipelined.cu",
           _both(_linear((128, 128), "128, 128, 16, 8, 8, 3", 3 * 16 * 256, 80))),
    Kernel("warp_tiled", "cuda", "warp tiles, operands prefetched from shared memory to registers", "warp_tiled.cu",
           {"float32": (_linear((128, 256), "128, 256, 16, 64, 64, 3, 1", 3 * 16 * (132 + 256), 80),),
            "float64": (_linear((128, 128), "128, 128, 16, 32, 64, 3, 1", 3 * 16 * (130 + 128), 80),)},
           adds=True, reason="float32's fastest without reduced precision"),
    Kernel("tensor", "cuda", "double-precision tensor cores (mma)", "tensor.cu",
           {"float64": (_tensor(stages=3, capability=120), _tensor(stages=4, capability=90), _tensor(stages=3, capability=80))},
           dtypes=("float64",), adds=True, reason="this GPU has tensor cores for float64"),
    Kernel("tensor_half", "cuda", "tensor cores for float16 and bfloat16 operands (mma), sums in float32", "tensor_half.cu",
           dict.fromkeys(HALVES, (_tensor_wide(32, 120), _tensor_wide(64, 90), _tensor_wide(32, 80))),
           dtypes=HALVES, adds=True, reason="this GPU has tensor cores for operands of 16 bits"),
    Kernel("tensor_int8", "cuda", "tensor cores for bytes (mma), sums in int32", "tensor_int8.cu",
           dict.fromkeys(BYTES, (_tensor_wide(64, 120), _tensor_wide(128, 90), _tensor_wide(64, 80))),
           dtypes=BYTES),
    Kernel("cublas", "cuda", "NVIDIA's library, for comparison; auto never chooses it", dtypes=BOTH + HALVES + BYTES, adds=True),
)  # fmt: skip

# Auto chooses the first of these that can run.
AUTO = ("blas", "matvec_warp", "tensor", "tensor_half", "warp_tiled", "register_tiled")


def named(name: str) -> Kernel | None:
    """The kernel of this name; None where there is none, as for "auto"."""
    return next((kernel for kernel in CATALOGUE if kernel.name == name), None)


def refusal(kernel: Kernel, dtype: str, columns: int, capability: int) -> str:
    """Why the kernel cannot multiply by a B of this type and number of columns on a GPU of this compute capability; "" if it
    can."""
    if dtype not in kernel.dtypes:
        return f"kernel {kernel.name} does not take {dtype}"
    if kernel.vectors_only and columns > 1:
        return f"kernel {kernel.name} multiplies by a vector, and B has {columns} columns"
    forms = kernel.forms.get(dtype, ())
    if forms and _form(kernel, dtype, capability) is None:
        needed = min(form.capability for form in forms)
        return f"kernel {kernel.name} needs compute capability {dotted(needed)}, and this GPU has {dotted(capability)}"
    return ""


def fastest(device: str, dtype: str, columns: int, capability: int = EMULATED_CAPABILITY) -> Kernel:
    """What `auto` chooses: on a GPU always one of our kernels, never a library's. UsageError where no kernel can run."""
    for kernel in filter(None, map(named, AUTO)):
        if kernel.runs_on(device) and not refusal(kernel, dtype, columns, capability):
            return kernel
    raise UsageError(
        f"no kernel for {dtype} on {device}, compute capability {dotted(capability)}; {dotted(LEAST_CAPABILITY)} is the least",
        code="kernel-unfit",
    )


def launch_of(
    kernel: Kernel, dtype: str, rows: int, columns: int, capability: int, width: int = 1, *, adds: bool = False
) -> Launch:
    """The launch that computes a C of this shape, or `adds` to it. `width`: elements of vector loads, as of `copy_width`."""
    form = _form(kernel, dtype, capability)
    assert form is not None, refusal(kernel, dtype, columns, capability)
    assert kernel.adds or not adds, f"{kernel.name} does not add"
    down, across = _pieces(rows, form.tile[0]), _pieces(columns, form.tile[1])
    width = 1 if width * OPERAND_SIZES[dtype] == 2 and dtype in BYTES else width  # two bytes at once, no more than one by one
    arguments = [_IN_CPP[dtype], *filter(None, [form.arguments]), *([str(width)] if form.by_width else [])]
    if adds:
        arguments.append("true")
    linear = form.linear_grid or ALL in form.tile
    grid = (down * across, 1) if linear else (across, min(down, MOST_BLOCKS_Y))
    expression = f"{kernel.function or kernel.name}<{', '.join(arguments)}>"
    return Launch(kernel.source, expression, grid, form.block, form.shared * OPERAND_SIZES[dtype])


def sums_type(dtype: str) -> str:
    """The type of the sums, and of C, where A and B are of this type."""
    return "float32" if dtype in HALVES else "int32" if dtype in BYTES else dtype


def _form(kernel: Kernel, dtype: str, capability: int) -> Form | None:
    return next((form for form in kernel.forms.get(dtype, ()) if form.capability <= capability), None)


def _pieces(whole: int, piece: int) -> int:
    return 1 if piece == ALL else -(-whole // piece)


def dotted(capability: int) -> str:
    """A compute capability as NVIDIA writes it: 90 is 9.0."""
    return f"{capability // 10}.{capability % 10}"


# --- products from remainders (Ozaki scheme II): instances, grids and thread blocks of their kernels

LEAST_FOR_BYTES = 75  # compute capability, times ten, that has mma.sync for bytes
MOST_TERMS = 65535 * 128  # of a sum: its units along k are thread blocks in y, whose number CUDA limits
_HOPPER = 90
# Compute capabilities with float64 tensor cores, or half as many units for it as for float32. Others have a 32nd or a 64th.
_MUCH_FLOAT64 = (60, 70, 80, 90, 100)
_THREADS, _WARPS = 256, 8
_CHUNK, _COLUMNS = 512, 32  # norms.cu: rows and columns of B that a block adds up; packed.cuh: columns that a block packs
_MMA, _STAGE, _STAGES, _STAGES_OF_75 = 128, (128 + 128) * 128, 3, 2  # products_mma.cu: tile, bytes of a stage, stages
_WGMMA = (256, 4 * 3 * 128 * 128)  # products.cu: a cluster's tile, bytes of a block's stages
_GUARD = (64, 2 * (64 + 64) * 128)


class Gpu(Protocol):
    """What a launch depends on: a GPU's compute capability, times ten, and its number of SMs."""

    capability: int
    multiprocessors: int


def row_measuring(element: str, rows: int, inner: int) -> Launch:
    return _launch("norms.cu", f"measure_rows<{element}>", (rows, 1))


def column_measuring(element: str, inner: int, columns: int) -> Launch:
    return _launch("norms.cu", f"measure_columns<{element}>", (_pieces(columns, _COLUMNS), _pieces(inner, _CHUNK)))


def line_kernel(name: str, lines: int) -> Launch:
    """`summarize` or `scale_lines`."""
    return _launch("norms.cu", name, (_pieces(lines, _THREADS), 1))


def telling() -> Launch:
    return Launch("norms.cu", "tell", (1, 1), (32, 1), 0, prefers_shared=True)


def magnitude_packing(operand: str, element: str, lines: int, units: int) -> Launch:
    return _packing("guard.cu", "magnitudes", operand, element, lines, units)


def remainder_packing(
    operand: str, element: str, moduli: int, lines: int, units: int, *, is_complex: bool = False, conjugates: bool = False
) -> Launch:
    arguments = f"{element}, {moduli}" + ", 2" * is_complex + ", true" * conjugates
    return _packing("remainders.cu", "remainders", operand, arguments, lines, units)


def guarding(gpu: Gpu, rows: int, columns: int) -> Launch:
    if gpu.capability == _HOPPER:
        return _of_clusters(gpu, "least_ratio", rows, columns, 1)
    tile, shared = _GUARD
    tiles = _pieces(rows, tile) * _pieces(columns, tile)
    return Launch("guard.cu", "least_ratio", (tiles, 1), (128, 1), shared, prefers_shared=True)


def products_of(gpu: Gpu, element: str, rows: int, columns: int, moduli: int) -> Launch:
    """The products modulo each of the moduli; or, with an element type (of C), one product of signed bytes."""
    expression = f"byte_products<{element}>" if element else "products"
    if gpu.capability == _HOPPER:
        return _of_clusters(gpu, expression, rows, columns, moduli)
    blocks, stages = moduli * _pieces(rows, _MMA) * _pieces(columns, _MMA), _STAGES if gpu.capability >= 80 else _STAGES_OF_75
    return Launch("products_mma.cu", expression, (blocks, 1), (128, 1), stages * _STAGE, prefers_shared=True)


def _of_clusters(gpu: Gpu, expression: str, rows: int, columns: int, moduli: int) -> Launch:
    tile, shared = _WGMMA
    clusters = min(gpu.multiprocessors // 2, moduli * _pieces(rows, tile) * _pieces(columns, tile))
    return Launch("products.cu", expression, (2 * clusters, 1), (288, 1), shared, "sm_90a", 2, prefers_shared=True)


def lacks_float64(capability: int) -> bool:
    """Whether float64 is so slow that C is put together by integers."""
    return capability not in _MUCH_FLOAT64


def reconstruction(element: str, moduli: int, rows: int, columns: int, *, by_integers: bool, is_complex: bool = False) -> Launch:
    """`columns`: of numbers, complex ones where C `is_complex`."""
    name, parts = "reconstruct_by_integers" if by_integers else "reconstruct", ", 2" * is_complex
    return _launch("reconstruct.cu", f"{name}<{element}, {moduli}{parts}>", (rows, _pieces(columns, 4 * _THREADS)))


def usual_launches(gpu: Gpu, element: str, moduli: int, *, by_integers: bool, is_complex: bool = False) -> list[Launch]:
    """A launch of each kernel of usual products with this number of moduli, to load them together."""
    packings = [magnitude_packing(side, element, 1, 1) for side in "AB"]
    packings += [remainder_packing(side, element, 1, 1, 1) for side in "AB"]
    packings += [remainder_packing(side, element, moduli, 1, 1, is_complex=is_complex) for side in "AB"]
    products = [products_of(gpu, "", 1, 1, moduli), products_of(gpu, element, 1, 1, 1)]
    lines = [line_kernel(name, 1) for name in ("summarize", "scale_lines")]
    measuring = [row_measuring(element, 1, 1), column_measuring(element, 1, 1)]
    back = reconstruction(element, moduli, 1, 1, by_integers=by_integers, is_complex=is_complex)
    return [*measuring, *lines, telling(), guarding(gpu, 1, 1), *packings, *products, back]


def _packing(source: str, what: str, operand: str, arguments: str, lines: int, units: int) -> Launch:
    side, at_once = ("rows", _WARPS) if operand == "A" else ("columns", _COLUMNS)
    return _launch(source, f"{what}_of_{side}<{arguments}>", (_pieces(lines, at_once), units))


def _launch(source: str, expression: str, grid: tuple[int, int]) -> Launch:
    return Launch(source, expression, grid, (_THREADS, 1), 0, prefers_shared=True)
