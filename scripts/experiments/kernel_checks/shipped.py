# SPDX-License-Identifier: MIT
"""The machine code that the wheel brings along, so that usual products wait for no compiler."""

import lzma
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from experiments.kernel_checks.nvrtc import Nvrtc
from experiments.kernel_checks.remainder_instances import Gpu
from hybrid.core.problem import copy_width
from hybrid.devices import check_operations
from hybrid.devices.cuda_kernels import SHIPPED, architecture_of, packed, shipped_file
from hybrid.errors import HybridError
from hybrid.kernels.catalogue import BOTH, C_TYPES, ELEMENTS, KERNELS, OPERAND_SIZES, Launch, fastest, launch_of, sums_type
from hybrid.kernels.remainders import lacks_float64, usual_launches
from hybrid.planning.arithmetic import expected
from hybrid.planning.check_layout import GROUP_COLUMNS

CAPABILITIES = (80, 86, 90, 100, 120)  # 8.9 takes the machine code for 8.6

_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "pb": 4}]  # an instruction has 16 bytes


def launches(capability: int) -> Iterator[Launch]:
    """Those of products with the default settings, whose matrices fit on the GPU."""
    gpu = Gpu(capability)
    for dtype, size in OPERAND_SIZES.items():
        if dtype not in ELEMENTS:
            continue
        for columns in (1, 2) if dtype in BOTH else (2,):
            kernel = fastest("cuda", dtype, columns, capability)
            for adds in (False, True) if kernel.adds else (False,):
                yield launch_of(kernel, dtype, 1, 1, capability, copy_width(size, ()), adds=adds)
        for expression, block in check_operations.blocks_of(sums_type(dtype), dtype, GROUP_COLUMNS).items():
            yield Launch(check_operations.SOURCE, expression, (1, 1), block, 0)
    for dtype, element in C_TYPES.items():
        moduli = expected(dtype, fast=False).moduli
        yield from usual_launches(gpu, element, moduli, by_integers=lacks_float64(capability))


def write(nvrtc: Nvrtc) -> int:
    """Compile them all, several sources at once, and leave nothing else in the folder."""
    expressions: dict[tuple[str, str], dict[str, None]] = {}
    for capability in CAPABILITIES:
        for launch in launches(capability):
            architecture = launch.architecture or architecture_of(capability)
            expressions.setdefault((launch.source, architecture), {})[launch.expression] = None
    shutil.rmtree(SHIPPED, ignore_errors=True)
    SHIPPED.mkdir()

    def make(job: tuple[str, str]) -> int:
        source, architecture = job
        done = nvrtc.compile(KERNELS / source, [*expressions[job]], architecture)
        if done.errors:
            raise HybridError(f"{source}, {architecture}: {next(iter(done.errors.values()))}")
        content = lzma.compress(packed(dict(done.names), done.cubin), filters=_FILTERS)
        return shipped_file(source, architecture).write_bytes(content)

    with ThreadPoolExecutor() as pool:
        sizes = [*pool.map(make, expressions)]
    print(f"NVRTC {nvrtc.version}: {len(sizes)} files in {SHIPPED}, {sum(sizes)} bytes")
    return 0
