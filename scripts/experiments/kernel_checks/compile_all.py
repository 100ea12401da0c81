# SPDX-License-Identifier: MIT
"""Does every CUDA kernel compile, and fit, on every GPU? python scripts/compile_kernels.py [--targets sm_80 sm_90a]

Needs NVRTC and its bindings (pip install '.[nvrtc13]', or nvrtc12 for sm_60 and sm_70), but neither GPU nor driver. What each GPU
launches is compiled to machine code: the catalogue's kernels for each width of copies, those of the greeting, the check, and
products from remainders. Prints a line for each fault: what does not compile, does not fit on the GPU or spills registers; and
sources that nothing here compiles. Ends with 1 if there is any.

--ship writes the machine code that the wheel brings along into kernels/cubins instead (`python -m build -C cubins=on` does it).
"""

import argparse
import lzma
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from experiments.common import frame
from hybrid.core.problem import copy_width
from hybrid.core.settings import one_of
from hybrid.core.text import counted
from hybrid.devices import check_operations
from hybrid.devices.cuda_kernels import SHIPPED, architecture_of, compile_options, packed, shipped_file
from hybrid.diagnostics import greeting
from hybrid.errors import HybridError, UsageError
from hybrid.kernels import catalogue
from hybrid.kernels.catalogue import (
    BOTH,
    C_TYPES,
    CATALOGUE,
    ELEMENTS,
    KERNELS,
    OPERAND_SIZES,
    Kernel,
    Launch,
    fastest,
    lacks_float64,
    launch_of,
    sums_type,
    usual_launches,
)
from hybrid.planning.arithmetic import Summary, choose, expected
from hybrid.planning.schedule import GROUP_COLUMNS, GROUP_COLUMNS_OUT_OF_CORE


@dataclass(frozen=True)
class Resources:
    """What one instance of a kernel takes of a GPU, as NVIDIA's assembler (ptxas) says."""

    registers: int = 0  # of a thread
    shared: int = 0  # bytes that the source declares
    stack: int = 0  # bytes of a thread
    spill_stores: int = 0  # bytes
    spill_loads: int = 0
    most_threads: int = 0  # of a block, by its __launch_bounds__; 0: it has none


def resources_in(log: str, ptx: str = "") -> dict[str, Resources]:
    """By mangled name, what `--ptxas-options=-v` says in `log` of each kernel, with the functions that it calls. `ptx`: the
    kernels' PTX, for their __launch_bounds__."""
    bounds = {
        name: int(x) * int(y) * int(z)
        for name, x, y, z in re.findall(r"\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+), (\d+), (\d+)", ptx)
    }
    found = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = part.split("'")[1]
        local = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        if registers is None:
            raise HybridError(f"the compiler's log says nothing of the registers of {name}", code="compile-failed")
        stack, stores, loads = (sum(map(int, column)) for column in zip(*local, strict=True)) if local else (0, 0, 0)
        found[name] = Resources(int(registers[1]), int(shared[1]) if shared else 0, stack, stores, loads, bounds.get(name, 0))
    return found


@dataclass(frozen=True)
class Compiled:
    """What became of the expressions of one source: resources, or why there are none."""

    resources: Mapping[str, Resources]
    errors: Mapping[str, str]
    warnings: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)  # mangled
    cubin: bytes = b""  # of all together


class Nvrtc:
    """The compiler's library, which loads without a driver. Its methods may be called from several threads at once."""

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
        """All instances of a source together; one by one if that fails, to tell which of them it is."""
        compiled = self._compile(source, expressions, target)
        if not compiled.errors or len(expressions) == 1:
            return compiled
        each = [self._compile(source, [expression], target) for expression in expressions]
        return Compiled(
            {name: resources for one in each for name, resources in one.resources.items()},
            {name: error for one in each for name, error in one.errors.items()},
            frozenset().union(*(one.warnings for one in each)),
        )

    def _compile(self, source: Path, expressions: Sequence[str], target: str) -> Compiled:
        library, call = self._library, self._call
        program = call(library.nvrtcCreateProgram, source.read_bytes(), source.name.encode(), 0, None, None)
        try:
            for expression in expressions:
                call(library.nvrtcAddNameExpression, program, expression.encode())
            options = [*compile_options(target), "--ptxas-options=-v"]
            status, *_ = library.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
            log = self._text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
            warnings = warnings_in(log)
            if status != library.nvrtcResult.NVRTC_SUCCESS:
                return Compiled({}, dict.fromkeys(expressions, first_error(log) or status.name), warnings)
            ptx = self._text(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program)
            found = resources_in(log, ptx)
            lowered = {expression: call(library.nvrtcGetLoweredName, program, expression.encode()) for expression in expressions}
            cubin = bytearray(call(library.nvrtcGetCUBINSize, program))
            call(library.nvrtcGetCUBIN, program, cubin)
        finally:
            call(library.nvrtcDestroyProgram, program)
        names = {expression: name.decode() for expression, name in lowered.items()}
        return Compiled({expression: found[name] for expression, name in names.items()}, {}, warnings, names, bytes(cubin))

    def _text(self, size: Callable[..., Any], get: Callable[..., Any], program: Any) -> str:
        text = bytearray(self._call(size, program))
        self._call(get, program, text)
        return text.rstrip(b"\0").decode(errors="replace")

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        status, *results = function(*arguments)
        if status != self._library.nvrtcResult.NVRTC_SUCCESS:
            raise HybridError(f"{function.__name__}: {status.name}")
        return results[0] if len(results) == 1 else results


def first_error(log: str) -> str:
    """The compiler's first complaint, without its excerpts of the source."""
    lines = [line.strip() for line in log.splitlines()]
    return next((line for line in lines if re.search(r"\b(error|fatal)\s*:", line)), "")


def warnings_in(log: str) -> frozenset[str]:
    """But for those that the oldest targets will go some day."""
    lines = (line.strip() for line in log.splitlines())
    return frozenset(line for line in lines if re.search(r"\bwarning\b.*:", line) and "Architectures prior to" not in line)


_MOST_EXPONENT = 53


@dataclass
class Gpu:
    capability: int
    multiprocessors: int = 132


def remainder_launches(target: str, capability: int) -> Iterator[Launch]:
    """Those of products from remainders on such a GPU. A kernel for one architecture alone is launched on no other target."""
    gpu = Gpu(capability)
    if capability < catalogue.LEAST_FOR_BYTES:
        return
    by_matrix_units = [catalogue.guarding(gpu, 1, 1)]
    by_matrix_units += [catalogue.products_of(gpu, element, 1, 1, 1) for element in ("", *C_TYPES.values())]
    yield from (launch for launch in by_matrix_units if launch.architecture in ("", target))
    yield from (catalogue.line_kernel(name, 1) for name in ("summarize", "scale_lines"))
    yield catalogue.telling()
    for dtype, element in C_TYPES.items():
        yield catalogue.row_measuring(element, 1, 1)
        yield catalogue.column_measuring(element, 1, 1)
        for operand in "AB":
            yield catalogue.magnitude_packing(operand, element, 1, 1)
            for moduli in (1, *moduli_of(dtype)):
                yield catalogue.remainder_packing(operand, element, moduli, 1, 1)
            for moduli, conjugates in product(moduli_of(dtype), {operand == "A", False}):
                how = {"is_complex": True, "conjugates": conjugates}
                yield catalogue.remainder_packing(operand, element, moduli, 1, 1, **how)
        for moduli, by_integers, is_complex in product(moduli_of(dtype), (False, True), (False, True)):
            yield catalogue.reconstruction(element, moduli, 1, 1, by_integers=by_integers, is_complex=is_complex)


def moduli_of(dtype: str) -> list[int]:
    """How many moduli a product may take, but for one: of integers of all sizes, and of other numbers whatever their ratio."""
    integers = [Summary(2.0**exponent, integral=True, in_range=True) for exponent in range(_MOST_EXPONENT + 1)]
    one, other = Summary(1.0, integral=True, in_range=True), Summary(1.0, integral=False, in_range=True)
    chosen = {choose(a, one, 1, dtype, lambda: 0.0, fast=False)[0].moduli for a in integers}
    for ratio in (2.0**-exponent for exponent in range(_MOST_EXPONENT)):
        chosen |= {choose(other, other, 1, dtype, partial(float, ratio), fast=fast)[0].moduli for fast in (False, True)}
    return sorted(chosen - {0, 1})


CAPABILITIES = (80, 86, 90, 100, 120)  # 8.9 takes the machine code for 8.6

_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "pb": 4}]  # an instruction has 16 bytes


def shipped_launches(capability: int) -> Iterator[Launch]:
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
        for is_complex in (False, True):
            yield from usual_launches(gpu, element, moduli, by_integers=lacks_float64(capability), is_complex=is_complex)


def ship(nvrtc: Nvrtc) -> int:
    """Compile them all, several sources at once, and leave nothing else in the folder."""
    expressions: dict[tuple[str, str], dict[str, None]] = {}
    for capability in CAPABILITIES:
        for launch in shipped_launches(capability):
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


TARGETS = ("sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
# Bytes of shared memory that one block can have, by compute capability (CUDA programming guide, technical specifications).
SHARED_LIMITS = {
    **dict.fromkeys((50, 52, 60, 61), 48 * 1024),
    **dict.fromkeys((70, 72), 96 * 1024),
    75: 64 * 1024,
    **dict.fromkeys((80, 87), 163 * 1024),
    **dict.fromkeys((86, 89, 120, 121), 99 * 1024),
    **dict.fromkeys((90, 100, 103, 110), 227 * 1024),
}
QUARTERS, QUARTER_REGISTERS = 4, 16384  # an SM's four quarters have registers of their own; warps are dealt to them in turn
MOST_THREADS = 1024
OTHERS = ("greeting", "check", "remainders")  # than the catalogue's kernels
# Elements that can be copied at once, up to 16 bytes.
WIDTHS = {"int8": (1, 4, 8, 16), "float16": (1, 2, 4, 8), "bfloat16": (1, 2, 4, 8), "float32": (1, 2, 4), "float64": (1, 2)}


@dataclass(frozen=True)
class Instance:
    """A launch on one kind of GPU."""

    target: str
    launch: Launch

    @property
    def threads(self) -> int:
        return self.launch.block[0] * self.launch.block[1]


def capability_of(target: str) -> int:
    """sm_90a → 90."""
    match = re.fullmatch(r"sm_(\d+)[af]?", target)
    if match is None or int(match[1]) not in SHARED_LIMITS:
        known = ", ".join(map(str, sorted(SHARED_LIMITS)))
        raise UsageError(f"unknown target {target}: sm_ and one of {known}, then a, f or nothing")
    return int(match[1])


def instances(target: str, kernels: Iterable[Kernel] = CATALOGUE, *, widest: bool = False) -> Iterator[Instance]:
    """Of each kernel and type the form that the target launches, with each width (or only the largest), once more where the
    kernel adds to C."""
    capability = capability_of(target)
    for kernel in kernels:
        for dtype in kernel.dtypes if kernel.source else ():
            form = next((form for form in kernel.forms.get(dtype, ()) if form.capability <= capability), None)
            widths = () if form is None else WIDTHS[dtype] if form.by_width else (1,)
            for width, adds in product(widths[-1:] if widest else widths, (False, True) if kernel.adds else (False,)):
                yield Instance(target, launch_of(kernel, dtype, 1, 1, capability, width, adds=adds))


def others(target: str, names: Iterable[str] = OTHERS) -> Iterator[Instance]:
    """The kernels of the greeting, of the check and of products from remainders, as they are launched."""
    if "remainders" in names:
        yield from (Instance(target, launch) for launch in remainder_launches(target, capability_of(target)))
    if "greeting" in names:
        yield Instance(target, Launch(greeting.SOURCE, greeting.KERNEL, (1, 1), (greeting.MOST_BLOCK, 1), 0))
    for dtype, group in product(ELEMENTS, (GROUP_COLUMNS, GROUP_COLUMNS_OUT_OF_CORE)) if "check" in names else ():
        for expression, block in check_operations.blocks_of(sums_type(dtype), dtype, group).items():
            yield Instance(target, Launch(check_operations.SOURCE, expression, (1, 1), block, 0))


def left_out(folder: Path = KERNELS) -> list[str]:
    """A fault for each source in the folder that neither the catalogue nor OTHERS have."""
    known = {kernel.source for kernel in CATALOGUE}
    known.update(instance.launch.source for target in TARGETS for instance in others(target))
    return [
        f"{path.name}: compiled for no GPU: it is neither in the catalogue nor among OTHERS of scripts/compile_kernels.py"
        for path in sorted(folder.glob("*.cu"))
        if path.name not in known
    ]


def faults_of(instance: Instance, used: Resources) -> list[str]:
    """What keeps the instance from starting, or makes it slow, on its target."""
    faults = []
    threads = instance.threads
    limit = SHARED_LIMITS[capability_of(instance.target)]
    shared = used.shared + instance.launch.shared_bytes
    if threads > (used.most_threads or MOST_THREADS):
        whose = "its __launch_bounds__ allow" if used.most_threads else "a block can have"
        faults.append(f"{threads} threads a block, {whose} {used.most_threads or MOST_THREADS}")
    if not registers_fit(used.registers, threads):
        faults.append(f"{used.registers} registers × {threads} threads, an SM has {QUARTERS * QUARTER_REGISTERS} registers")
    if shared > limit:
        faults.append(f"{shared} bytes of shared memory, a block can have {limit}")
    if used.spill_stores or used.spill_loads:
        faults.append(f"spills registers: {used.spill_stores} bytes stored, {used.spill_loads} loaded")
    return faults


def registers_fit(registers: int, threads: int) -> bool:
    """Whether an SM has the registers of one block. It gives them to a warp in portions of eight a thread."""
    warps_of_a_quarter = -(-threads // (32 * QUARTERS))
    return warps_of_a_quarter * -(-registers // 8) * 8 * 32 <= QUARTER_REGISTERS


def judge(wanted: Sequence[Instance], compiled: Mapping[tuple[str, str], Compiled]) -> list[str]:
    """One line a fault. `compiled`: by source and target. An error that many instances share is one fault."""
    faults: dict[tuple[str, str, str], list[str]] = {}
    for instance in wanted:
        source, expression = instance.launch.source, instance.launch.expression
        done = compiled[source, instance.target]
        if expression in done.errors:
            causes = [f"does not compile: {done.errors[expression]}"]
        else:
            causes = faults_of(instance, done.resources[expression])
        for cause in causes:
            faults.setdefault((source, instance.target, cause), []).append(expression)
    return [
        f"{source}, {target}: {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {cause}"
        for (source, target, cause), names in faults.items()
    ]


def work(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    nvrtc = Nvrtc()
    if options.ship:
        return ship(nvrtc)
    targets = options.targets or [target for target in TARGETS if capability_of(target) in nvrtc.capabilities]
    for target in targets:
        if capability_of(target) not in nvrtc.capabilities:
            raise UsageError(f"NVRTC {nvrtc.version} does not know {target}")
    kernels = [kernel for kernel in CATALOGUE if not options.kernels or kernel.name in options.kernels]
    more = [name for name in OTHERS if not options.kernels or name in options.kernels]
    for name in options.kernels or ():
        one_of("kernel with a source", name, [*(kernel.name for kernel in CATALOGUE if kernel.source), *OTHERS])
    found = (one for target in targets for one in (*instances(target, kernels, widest=options.widest), *others(target, more)))
    wanted = list(dict.fromkeys(found))
    compiled = compile_all(nvrtc, wanted)
    for warning in sorted(frozenset().union(*(done.warnings for done in compiled.values()))):
        print(f"warning: {warning}", file=sys.stderr)
    faults = judge(wanted, compiled) + ([] if options.kernels else left_out())
    for fault in faults:
        print(f"FAULT {fault}")
    seconds, count = time.perf_counter() - began, f"{counted(len(faults) or 'no', 'fault')}"
    print(f"NVRTC {nvrtc.version}: {len(wanted)} instances for {' '.join(targets)} in {seconds:.0f} s: {count}")
    return 1 if faults else 0


def compile_all(nvrtc: Nvrtc, wanted: Sequence[Instance]) -> dict[tuple[str, str], Compiled]:
    """By source and target. The library lets other threads run while it compiles."""
    expressions: dict[tuple[str, str], dict[str, None]] = {}
    for instance in wanted:
        expressions.setdefault((instance.launch.source, instance.target), {})[instance.launch.expression] = None
    # Long sources take longest: they come first, lest one of them ends alone.
    work = sorted(expressions, key=lambda job: len(expressions[job]) * (KERNELS / job[0]).stat().st_size, reverse=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = [
            pool.submit(nvrtc.compile, KERNELS / source, list(expressions[source, target]), target) for source, target in work
        ]
        return {job: future.result() for job, future in frame.shown(list(zip(work, futures, strict=True)), "sources")}


def main() -> int:
    parser = frame.parser_of(
        __doc__,
        frame.option("--targets", nargs="+", metavar="SM", help=f"GPUs ({' '.join(TARGETS)}, as far as NVRTC can)"),
        frame.option("--kernels", nargs="+", metavar="NAME", help="only these (all)"),
        frame.option("--widest", action="store_true", help="each form only with the widest copies"),
        frame.option("--ship", action="store_true", help="write the machine code for the wheel"),
    )
    return frame.command(parser, work)
