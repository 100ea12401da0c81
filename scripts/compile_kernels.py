"""Does every CUDA kernel compile, and fit, on every GPU? python scripts/compile_kernels.py [--targets sm_80 sm_90a]

Needs NVRTC and its bindings (pip install '.[nvrtc13]', or nvrtc12 for sm_60 and sm_70), but neither GPU nor driver. All
forms of the catalogue are compiled to machine code, for each width of copies. Prints what each instance takes of a GPU;
`shared` is what the source declares + what the launch gives, `spills` are bytes stored + loaded. Then a line for each fault:
what does not compile, and for the forms that would be launched there, what does not fit on the GPU or spills registers.
Ends with 1 if there is any.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from hybrid import files, record
from hybrid.errors import HybridError, UsageError
from hybrid.kernels import catalogue
from hybrid.kernels.catalogue import CATALOGUE, Kernel, Launch

KERNELS = Path(catalogue.__file__).parent
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
WIDTHS = {"float32": (1, 2, 4), "float64": (1, 2)}  # elements that can be copied at once, up to 16 bytes


@dataclass(frozen=True)
class Instance:
    """One form of a kernel, for one kind of GPU."""

    kernel: str
    dtype: str
    target: str
    launch: Launch
    launched: bool  # False: on this GPU the kernel has a faster form

    @property
    def threads(self) -> int:
        return self.launch.block[0] * self.launch.block[1]


@dataclass(frozen=True)
class Resources:
    """What an instance takes of a GPU."""

    registers: int = 0  # of a thread
    shared: int = 0  # bytes that the source declares
    stack: int = 0  # bytes of a thread
    spill_stores: int = 0
    spill_loads: int = 0
    most_threads: int = 0  # by its __launch_bounds__; 0: it has none


@dataclass(frozen=True)
class Compiled:
    """What became of the expressions of one source: resources, or why there are none."""

    resources: Mapping[str, Resources]
    errors: Mapping[str, str]
    warnings: frozenset[str] = frozenset()


# --- what there is to compile


def capability_of(target: str) -> int:
    """sm_90a → 90."""
    match = re.fullmatch(r"sm_(\d+)[af]?", target)
    if match is None or int(match[1]) not in SHARED_LIMITS:
        raise UsageError(
            f"unknown target {target}: sm_ and one of {', '.join(map(str, sorted(SHARED_LIMITS)))}, then a, f or nothing"
        )
    return int(match[1])


def instances(target: str, kernels: Iterable[Kernel] = CATALOGUE) -> Iterator[Instance]:
    """All forms that the target is capable of, once with each width."""
    capability = capability_of(target)
    for kernel in kernels:
        for dtype in kernel.dtypes if kernel.source else ():
            possible = [form for form in kernel.forms.get(dtype, ()) if form.capability <= capability]
            for form in possible:
                for width in WIDTHS[dtype] if form.by_width else (1,):
                    alone = dataclasses.replace(kernel, forms={dtype: (form,)})
                    launch = catalogue.launch_of(alone, dtype, 1, 1, capability, width)
                    chosen = catalogue.launch_of(kernel, dtype, 1, 1, capability, width)
                    yield Instance(kernel.name, dtype, target, launch, launch == chosen)


# --- compiling


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
            options = [f"-I{source.parent}", "--std=c++17", f"-arch={target}", "--ptxas-options=-v"]
            status, *_ = library.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
            log = self._text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
            warnings = warnings_in(log)
            if status != library.nvrtcResult.NVRTC_SUCCESS:
                return Compiled({}, dict.fromkeys(expressions, first_error(log) or status.name), warnings)
            ptx = self._text(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program)
            found = resources_in(log, ptx)
            names = {expression: call(library.nvrtcGetLoweredName, program, expression.encode()) for expression in expressions}
        finally:
            call(library.nvrtcDestroyProgram, program)
        return Compiled({expression: found[name.decode()] for expression, name in names.items()}, {}, warnings)

    def _text(self, size: Callable[..., Any], get: Callable[..., Any], program: Any) -> str:
        text = bytearray(self._call(size, program))
        self._call(get, program, text)
        return text.rstrip(b"\0").decode(errors="replace")

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        status, *results = function(*arguments)
        if status != self._library.nvrtcResult.NVRTC_SUCCESS:
            raise HybridError(f"{function.__name__}: {status.name}")
        return results[0] if len(results) == 1 else results


def resources_in(log: str, ptx: str = "") -> dict[str, Resources]:
    """By mangled name: what `--ptxas-options=-v` says of each kernel, functions that it calls included."""
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
            raise HybridError(f"the compiler's log says nothing of the registers of {name}")
        stack, stores, loads = (sum(map(int, column)) for column in zip(*local, strict=True)) if local else (0, 0, 0)
        found[name] = Resources(int(registers[1]), int(shared[1]) if shared else 0, stack, stores, loads, bounds.get(name, 0))
    return found


def first_error(log: str) -> str:
    """The compiler's first complaint, without its excerpts of the source."""
    lines = [line.strip() for line in log.splitlines()]
    return next((line for line in lines if re.search(r"\b(error|fatal)\s*:", line)), "")


def warnings_in(log: str) -> frozenset[str]:
    """But for those that the oldest targets will go some day."""
    lines = (line.strip() for line in log.splitlines())
    return frozenset(line for line in lines if re.search(r"\bwarning\b.*:", line) and "Architectures prior to" not in line)


# --- judging


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
            causes = faults_of(instance, done.resources[expression]) if instance.launched else []
        for cause in causes:
            faults.setdefault((source, instance.target, cause), []).append(expression)
    return [
        f"{source}, {target}: {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {cause}"
        for (source, target, cause), names in faults.items()
    ]


# --- reporting

HEADINGS = ("kernel", "expression", "target", "registers", "shared", "stack", "spills", "")


def table(rows: Iterable[tuple[Instance, Resources]]) -> list[str]:
    """Aligned lines under their headings."""
    cells = [HEADINGS]
    for instance, used in rows:
        shared, spills = f"{used.shared}+{instance.launch.shared_bytes}", f"{used.spill_stores}+{used.spill_loads}"
        note = "" if instance.launched else "not launched"
        numbers = (str(used.registers), shared, str(used.stack), spills)
        cells.append((instance.kernel, instance.launch.expression, instance.target, *numbers, note))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned = ["<", "<", "<", ">", ">", ">", ">", "<"]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths, strict=True)).rstrip()
        for row in cells
    ]


def write_json(path: str, rows: Iterable[tuple[Instance, Resources]], version: str) -> None:
    with files.appearing(path) as beside:
        beside.touch()
        for instance, used in rows:
            line = {"nvrtc": version, **dataclasses.asdict(instance), **dataclasses.asdict(used)}
            record.write(line | {"faults": faults_of(instance, used) if instance.launched else []}, str(beside))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--targets", nargs="+", metavar="SM", help=f"GPUs to compile for ({' '.join(TARGETS)}, as far as NVRTC can)"
    )
    parser.add_argument("--kernels", nargs="+", metavar="NAME", help="only these of the catalogue (all)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="sources compiled at once (one a core)")
    parser.add_argument("--json", metavar="FILE", help="write one line for each instance: what it takes, and its faults")
    parser.add_argument("--quiet", action="store_true", help="no table: only faults and the last line")
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except HybridError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return max(2, error.exit_code)


def run(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    if options.json:
        files.refuse_unwritable(options.json)
    nvrtc = Nvrtc()
    targets = options.targets or [target for target in TARGETS if capability_of(target) in nvrtc.capabilities]
    for target in targets:
        if capability_of(target) not in nvrtc.capabilities:
            raise UsageError(f"NVRTC {nvrtc.version} does not know {target}")
    kernels = [kernel for kernel in CATALOGUE if not options.kernels or kernel.name in options.kernels]
    unknown = set(options.kernels or ()) - {kernel.name for kernel in kernels if kernel.source}
    if unknown:
        raise UsageError(f"no kernel with a source is called {', '.join(sorted(unknown))}")
    wanted = list(dict.fromkeys(instance for target in targets for instance in instances(target, kernels)))
    wanted.sort(key=lambda instance: ([kernel.name for kernel in kernels].index(instance.kernel), instance.launch.expression))
    compiled = compile_all(nvrtc, wanted, max(1, options.jobs))
    rows = []
    for instance in wanted:
        used = compiled[instance.launch.source, instance.target].resources.get(instance.launch.expression)
        if used is not None:
            rows.append((instance, used))
    if not options.quiet:
        print(*table(rows), sep="\n")
    if options.json:
        write_json(options.json, rows, nvrtc.version)
    for warning in sorted(frozenset().union(*(done.warnings for done in compiled.values()))):
        print(f"warning: {warning}", file=sys.stderr)
    faults = judge(wanted, compiled)
    for fault in faults:
        print(f"FAULT {fault}")
    count = f"{len(faults)} fault{'' if len(faults) == 1 else 's'}" if faults else "no faults"
    print(
        f"NVRTC {nvrtc.version}: {len(wanted)} instances for {' '.join(targets)} in {time.perf_counter() - began:.0f} s: {count}"
    )
    return 1 if faults else 0


def compile_all(nvrtc: Nvrtc, wanted: Sequence[Instance], jobs: int) -> dict[tuple[str, str], Compiled]:
    """By source and target. The library lets other threads run while it compiles."""
    expressions: dict[tuple[str, str], dict[str, None]] = {}
    for instance in wanted:
        expressions.setdefault((instance.launch.source, instance.target), {})[instance.launch.expression] = None
    # Long sources take longest: they come first, lest one of them ends alone.
    work = sorted(expressions, key=lambda job: len(expressions[job]) * (KERNELS / job[0]).stat().st_size, reverse=True)
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda job: nvrtc.compile(KERNELS / job[0], list(expressions[job]), job[1]), work)
        return dict(zip(work, tqdm(results, total=len(work), desc="sources", disable=not sys.stderr.isatty()), strict=True))


if __name__ == "__main__":
    sys.exit(main())
