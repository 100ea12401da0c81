# SPDX-License-Identifier: MIT
"""Does every CUDA kernel compile, and fit, on every GPU? python scripts/compile_kernels.py [--targets sm_80 sm_90a]

Needs NVRTC and its bindings (pip install '.[nvrtc13]', or nvrtc12 for sm_60 and sm_70), but neither GPU nor driver. Compiles all
that each GPU launches to machine code: the catalogue's kernels for each width of copies, those of the greeting, the check, and
products from remainders. Prints a line for each fault: a kernel that does not compile, does not fit on the GPU or spills
registers. Ends with 1 if there is any.

--ship instead writes the wheel's machine code into kernels/cubins (`python -m build -C cubins=on` does it).
"""

import argparse
import lzma
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from experiments.common import frame
from hybrid.classroom.gpu_models import MODELS, WARP, occupancy
from hybrid.commands import hello
from hybrid.core.problem import copy_width
from hybrid.core.text import counted
from hybrid.devices import check_operations
from hybrid.devices.cuda_kernels import SHIPPED, architecture_of, compile_options, packed, shipped_file
from hybrid.errors import HybridError, UsageError
from hybrid.kernels import catalogue
from hybrid.planning.arithmetic import Summary, choose, expected
from hybrid.planning.schedule import GROUP_COLUMNS, GROUP_COLUMNS_OUT_OF_CORE

Job = tuple[str, str]  # a source, and the architecture for which it is compiled


class Resources(NamedTuple):
    """The resources of a kernel's instance, as reported by ptxas."""

    registers: int  # of a thread
    shared: int  # bytes declared in the source
    spilled: int  # bytes stored and loaded
    most_threads: int  # of a block, by its __launch_bounds__; 0: none


def resources_in(log: str, ptx: str) -> dict[str, Resources]:
    """Each kernel's resources, by mangled name: from the `log` of `--ptxas-options=-v`, and from the PTX its
    __launch_bounds__."""
    of_blocks = re.findall(r"\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+), (\d+), (\d+)", ptx)
    bounds, found = {name: math.prod(map(int, sides)) for name, *sides in of_blocks}, {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name, shared = part.split("'")[1], re.search(r"(\d+) bytes smem", part)
        if (registers := re.search(r"Used (\d+) registers", part)) is None:
            raise HybridError(f"the compiler's log says nothing of the registers of {name}", code="compile-failed")
        spilled = sum(map(int, re.findall(r"(\d+) bytes spill", part)))
        found[name] = Resources(int(registers[1]), int(shared[1]) if shared else 0, spilled, bounds.get(name, 0))
    return found


class Compiled(NamedTuple):
    """The compiled instances of one source, by expression, or the first error."""

    error: str = ""
    names: dict[str, str] = {}  # mangled
    resources: dict[str, Resources] = {}
    cubin: bytes = b""  # of all instances


class Nvrtc:
    """The compiler's library, which needs no driver. Methods may be called from several threads at once."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import nvrtc  # type: ignore[import-not-found,import-untyped,unused-ignore]

            self._library: Any = nvrtc
            major, minor = self._call(nvrtc.nvrtcVersion)
            self.capabilities = frozenset(self._call(nvrtc.nvrtcGetSupportedArchs))
        except (ImportError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise HybridError(f"NVRTC cannot be loaded ({reason}): pip install '.[nvrtc13]' or '.[nvrtc12]'") from error
        self.version = f"{major}.{minor}"

    def compile(self, source: Path, expressions: Sequence[str], target: str) -> Compiled:
        """Compile all instances of a source together: an error in one fails all."""
        library, call = self._library, self._call
        program = call(library.nvrtcCreateProgram, source.read_bytes(), source.name.encode(), 0, None, None)
        try:
            for expression in expressions:
                call(library.nvrtcAddNameExpression, program, expression.encode())
            options = [*compile_options(target), "--ptxas-options=-v"]
            status, *_ = library.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
            log = self._made(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program).decode(errors="replace")
            if status != library.nvrtcResult.NVRTC_SUCCESS:
                return Compiled(next((line for line in log.splitlines() if re.search(r"\b(error|fatal)\s*:", line)), status.name))
            names = {each: call(library.nvrtcGetLoweredName, program, each.encode()).decode() for each in expressions}
            ptx = self._made(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program).decode()
            found = resources_in(log, ptx)
            cubin = self._made(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
            return Compiled("", names, {expression: found[name] for expression, name in names.items()}, cubin)
        finally:
            call(library.nvrtcDestroyProgram, program)

    def _made(self, size: Callable[..., Any], get: Callable[..., Any], program: Any) -> bytes:
        into = bytearray(self._call(size, program))
        self._call(get, program, into)
        return bytes(into)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        status, *results = function(*arguments)
        if status != self._library.nvrtcResult.NVRTC_SUCCESS:
            raise HybridError(f"{function.__name__}: {status.name}")
        return results[0] if len(results) == 1 else results


_MOST_EXPONENT = 53
# Elements per copy, up to 16 bytes.
WIDTHS = {"int8": (1, 4, 8, 16), "float16": (1, 2, 4, 8), "bfloat16": (1, 2, 4, 8), "float32": (1, 2, 4), "float64": (1, 2)}


@dataclass
class Gpu:
    capability: int
    multiprocessors: int = 132


def of_kernel(kernel: catalogue.Kernel, capability: int, *, widest: bool = False) -> Iterator[catalogue.Launch]:
    """For each type the form that such a GPU launches, with each width (or only the largest), and once more if the kernel can add
    to C."""
    for dtype in kernel.dtypes if kernel.source else ():
        form = next((form for form in kernel.forms.get(dtype, ()) if form.capability <= capability), None)
        widths = () if form is None else WIDTHS[dtype] if form.by_width else (1,)
        for width, adds in product(widths[-1:] if widest else widths, (False, True) if kernel.adds else (False,)):
            yield catalogue.launch_of(kernel, dtype, 1, 1, capability, width, adds=adds)


def of_others(target: str, capability: int) -> Iterator[catalogue.Launch]:
    """The kernels of the greeting, the check, and products from remainders. A kernel for a single architecture is compiled only
    for that."""
    yield catalogue.Launch(hello.SOURCE, hello.KERNEL, (1, 1), (hello.MOST_BLOCK, 1), 0)
    for dtype, group in product(catalogue.ELEMENTS, (GROUP_COLUMNS, GROUP_COLUMNS_OUT_OF_CORE)):
        yield from _of_check(dtype, group)
    if capability >= catalogue.LEAST_FOR_BYTES:
        yield from (launch for launch in _of_remainders(Gpu(capability)) if launch.architecture in ("", target))


def _of_check(dtype: str, group: int) -> Iterator[catalogue.Launch]:
    for expression, block in check_operations.blocks_of(catalogue.sums_type(dtype), dtype, group).items():
        yield catalogue.Launch(check_operations.SOURCE, expression, (1, 1), block, 0)


def _of_remainders(gpu: Gpu) -> Iterator[catalogue.Launch]:
    yield catalogue.guarding(gpu, 1, 1)
    yield from (catalogue.products_of(gpu, element, 1, 1, 1) for element in ("", *catalogue.C_TYPES.values()))
    yield from (catalogue.line_kernel(name, 1) for name in ("summarize", "scale_lines"))
    yield catalogue.telling()
    for dtype, element in catalogue.C_TYPES.items():
        moduli_of_type = _moduli_of(dtype)
        yield catalogue.row_measuring(element, 1, 1)
        yield catalogue.column_measuring(element, 1, 1)
        for operand in "AB":
            yield catalogue.magnitude_packing(operand, element, 1, 1)
            for moduli in (1, *moduli_of_type):
                yield catalogue.remainder_packing(operand, element, moduli, 1, 1)
            for moduli, conjugates in product(moduli_of_type, {operand == "A", False}):
                how = {"is_complex": True, "conjugates": conjugates}
                yield catalogue.remainder_packing(operand, element, moduli, 1, 1, **how)
        for moduli, by_integers, is_complex in product(moduli_of_type, (False, True), (False, True)):
            yield catalogue.reconstruction(element, moduli, 1, 1, by_integers=by_integers, is_complex=is_complex)


def _moduli_of(dtype: str) -> list[int]:
    """All numbers of moduli above one that a product may take: of integers of any size, and of other numbers of any ratio."""
    integers = [Summary(2.0**exponent, integral=True, in_range=True) for exponent in range(_MOST_EXPONENT + 1)]
    other = Summary(1.0, integral=False, in_range=True)
    chosen = {choose(a, integers[0], 1, dtype, lambda: 0.0, fast=False)[0].moduli for a in integers}
    for exponent, fast in product(range(_MOST_EXPONENT), (False, True)):
        chosen.add(choose(other, other, 1, dtype, partial(float, 2.0**-exponent), fast=fast)[0].moduli)
    return sorted(chosen - {0, 1})


CAPABILITIES = (80, 86, 90, 100, 120)  # 8.9 runs the machine code for 8.6
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "pb": 4}]  # instructions have 16 bytes


def shipped_launches(capability: int) -> Iterator[catalogue.Launch]:
    """The launches of products with default settings whose matrices fit on the GPU."""
    for dtype, size in catalogue.OPERAND_SIZES.items():
        if dtype not in catalogue.ELEMENTS:
            continue
        for columns in (1, 2) if dtype in catalogue.BOTH else (2,):
            kernel = catalogue.fastest("cuda", dtype, columns, capability)
            for adds in (False, True) if kernel.adds else (False,):
                yield catalogue.launch_of(kernel, dtype, 1, 1, capability, copy_width(size, ()), adds=adds)
        yield from _of_check(dtype, GROUP_COLUMNS)
    for (dtype, element), is_complex in product(catalogue.C_TYPES.items(), (False, True)):
        how = {"by_integers": catalogue.lacks_float64(capability), "is_complex": is_complex}
        yield from catalogue.usual_launches(Gpu(capability), element, expected(dtype, fast=False).moduli, **how)


def ship(nvrtc: Nvrtc) -> int:
    """Compile all shipped launches; the folder then contains nothing else."""
    launches = [(each, launch) for each in CAPABILITIES for launch in shipped_launches(each)]
    wanted = [(launch.architecture or architecture_of(capability), launch) for capability, launch in launches]
    shutil.rmtree(SHIPPED, ignore_errors=True)
    SHIPPED.mkdir()
    size = 0
    for (source, architecture), done in compile_all(nvrtc, wanted).items():
        if done.error:
            raise HybridError(f"{source}, {architecture}: {done.error}")
        content = lzma.compress(packed(done.names, done.cubin), filters=_FILTERS)
        size += shipped_file(source, architecture).write_bytes(content)
    print(f"NVRTC {nvrtc.version}: {len([*SHIPPED.iterdir()])} files in {SHIPPED}, {size} bytes")
    return 0


TARGETS = ("sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
_REGISTERS = 256  # allocation unit of a warp's registers
_MULTIPROCESSORS = {model.capability: model.multiprocessor for model in MODELS}


def capability_of(target: str) -> int:
    """sm_90a → 90."""
    match = re.fullmatch(r"sm_(\d+)[af]?", target)
    if match is None or int(match[1]) not in _MULTIPROCESSORS:
        raise UsageError(f"unknown target {target}: sm_ and one of {', '.join(map(str, _MULTIPROCESSORS))}, then a, f or nothing")
    return int(match[1])


def faults_of(launch: catalogue.Launch, target: str, done: Compiled) -> Iterator[str]:
    """Why the launch cannot start, or is slow, on its target."""
    if done.error:
        yield f"does not compile: {done.error}"
        return
    used, threads = done.resources[launch.expression], launch.block[0] * launch.block[1]
    shared = used.shared + launch.shared_bytes
    holds = _MULTIPROCESSORS[capability_of(target)]
    resident, warps = occupancy(holds, threads, shared), -(-threads // WARP)
    registers = warps * -(-used.registers * WARP // _REGISTERS) * _REGISTERS
    if used.most_threads and threads > used.most_threads:
        yield f"{threads} threads a block, its __launch_bounds__ allow {used.most_threads}"
    if not resident.blocks or registers > holds.registers:
        too_much = f"{threads} threads, {used.registers} registers each, {shared} bytes of shared memory"
        yield f"no block is resident on a multiprocessor: {too_much}"
    if used.spilled:
        yield f"spills registers: {used.spilled} bytes stored and loaded"


def compile_all(nvrtc: Nvrtc, wanted: Iterable[tuple[str, catalogue.Launch]]) -> dict[Job, Compiled]:
    """Compile launches, each for its target, in parallel: NVRTC releases the GIL."""
    expressions: dict[Job, dict[str, None]] = {}
    for target, launch in wanted:
        expressions.setdefault((launch.source, target), {})[launch.expression] = None
    # Long sources first, so that none of them runs alone at the end.
    jobs = sorted(expressions, key=lambda job: len(expressions[job]) * (catalogue.KERNELS / job[0]).stat().st_size, reverse=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = [pool.submit(nvrtc.compile, catalogue.KERNELS / job[0], [*expressions[job]], job[1]) for job in jobs]
        return {job: future.result() for job, future in frame.shown(list(zip(jobs, futures, strict=True)), "sources")}


def work(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    nvrtc = Nvrtc()
    if options.ship:
        return ship(nvrtc)
    targets = options.targets or [target for target in TARGETS if capability_of(target) in nvrtc.capabilities]
    wanted: dict[tuple[str, catalogue.Launch], None] = {}
    for target in targets:
        if (capability := capability_of(target)) not in nvrtc.capabilities:
            raise UsageError(f"NVRTC {nvrtc.version} does not know {target}")
        for kernel in catalogue.CATALOGUE:
            wanted |= dict.fromkeys((target, launch) for launch in of_kernel(kernel, capability, widest=options.widest))
        wanted |= dict.fromkeys((target, launch) for launch in of_others(target, capability))
    compiled = compile_all(nvrtc, wanted)
    faults: dict[str, list[str]] = {}  # an error shared by many instances is one fault
    for target, launch in wanted:
        for fault in faults_of(launch, target, compiled[launch.source, target]):
            faults.setdefault(f"{launch.source}, {target}: {fault}", []).append(launch.expression)
    for fault, names in faults.items():
        print(f"FAULT {fault} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})")
    seconds, count = time.perf_counter() - began, counted(len(faults) or "no", "fault")
    print(f"NVRTC {nvrtc.version}: {len(wanted)} instances for {' '.join(targets)} in {seconds:.0f} s: {count}")
    return 1 if faults else 0


def main() -> int:
    parser = frame.parser_of(
        __doc__,
        frame.option("--targets", nargs="+", metavar="SM", help=f"GPUs ({' '.join(TARGETS)}, as far as NVRTC can)"),
        frame.option("--widest", action="store_true", help="each form only with the widest copies"),
        frame.option("--ship", action="store_true", help="write the machine code for the wheel"),
    )
    return frame.command(parser, work)
