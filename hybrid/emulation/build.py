# SPDX-License-Identifier: MIT
"""Compiles CUDA kernels for the CPU with the machine's C++ compiler, and caches the libraries on disk."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from hybrid.emulation.cache import NO_ROOM, cache_key, cached
from hybrid.emulation.errors import EmulationError
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.kernels.catalogue import KERNELS

HERE = Path(__file__).resolve().parent

# No strict aliasing: kernels load elements as float4 or double2. No contraction: kernels call fma where they want one.
# No warnings: nvcc gives those.
COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-fno-strict-aliasing", "-ffp-contract=off", "-w")
_KERNEL = {  # a kernel's flags, by check
    "": ("-O2",),
    "undefined": ("-O1", "-g1", "-fsanitize=undefined"),
    # -O0 makes each use of a captured variable an access, and kernels take minutes. -O1, like nvcc, may merge two loads of an
    # element.
    "accesses": ("-O1", "-g1", "-gdwarf-4", "-fsanitize=thread"),
}
_WATCHING = ("findings", "device_memory", "observers", "memory_check")  # more of the runtime, for "accesses"
POISON = "-ftrivial-auto-var-init=pattern"  # GCC from 12 on, clang from 8 on
CHECKS = tuple(_KERNEL)


def compiler() -> str:
    """The path of a C++17 compiler: $CXX, g++ or clang++. DeviceUnavailable when there is none."""
    return _program(
        "CXX",
        ("g++", "clang++"),
        "C++",
        "CUDA kernels on the CPU (--device emulate) need a C++ compiler: apt-get install g++ (or set CXX)",
    )


def c_compiler() -> str:
    """The path of a C compiler: $CC, gcc, clang or cc. DeviceUnavailable when there is none."""
    return _program(
        "CC", ("gcc", "clang", "cc"), "C", "--kernel loops and hybrid.use need a C compiler: apt-get install gcc (or set CC)"
    )


def _program(variable: str, names: Sequence[str], language: str, missing: str) -> str:
    """The compiler that the environment variable names, else the first of `names` on the PATH; `missing`: the error's text."""
    asked_for = os.environ.get(variable)
    for name in [asked_for] if asked_for else names:
        if path := shutil.which(name):
            return path
    if asked_for:
        raise DeviceUnavailable(
            f"{variable}={asked_for} is not a program: let it name a {language} compiler, or nothing", code="no-compiler"
        )
    raise DeviceUnavailable(missing, code="no-compiler")


def build(source: Path, expressions: Sequence[str], *, capability: int = 90, checks: str = "") -> Path:
    """Compile these template instances of the kernels in `source` into a shared library with the functions run_0, run_1, ...

    Headers are searched beside `source`, then among the project's kernels. `capability`: compute capability times ten, for
    __CUDA_ARCH__. `checks`: one of CHECKS. EmulationError of kind "build" when they do not compile.
    """
    source, program = source.resolve(), compiler()
    flags = (*COMMON, *_KERNEL[checks], *native(), f"-D__CUDA_ARCH__={capability * 10}")
    entries = "".join(
        f'extern "C" __attribute__((visibility("default"))) const char* run_{i}(\n'
        f"    const cuda_on_cpu::Launch* launch, const cuda_on_cpu::Array* arrays, int count)\n"
        f"{{ return cuda_on_cpu::start({expression}, launch, arrays, count); }}\n"
        for i, expression in enumerate(expressions)
    )
    headers = [*sorted({*source.parent.glob("*.cuh"), *KERNELS.glob("*.cuh")}), *sorted(HERE.glob("*.h"))]
    made_from = (flags, entries, source, *headers, *sorted(HERE.glob("*.cpp")))

    def compile_in(folder: Path, log: Path) -> Path:
        text = folder / f"{source.stem}.cpp"
        # The anonymous namespace keeps symbols of several loaded libraries apart.
        text.write_text(f'namespace {{\n#include "{source.name}"\n}}\n{entries}', encoding="utf-8")
        short = [f"-ffile-prefix-map={prefix}/=" for prefix in (source.parent, KERNELS)]  # messages then say tiled.cu:20
        include = ["-include", str(HERE / "cuda_on_cpu.h"), "-iquote", str(source.parent), "-I", str(HERE), "-I", str(KERNELS)]
        kernel = folder / "kernel.o"
        compile_file(program, source.name, [*flags, *short, *include, "-c", str(text), "-o", str(kernel)], log)
        parts = ("runtime", *_WATCHING) if checks == "accesses" else ("runtime",)
        first, last, *others = [runtime_object(program, name) for name in ("begin", "end", *parts)]
        objects = [first, kernel, last, *others]  # runtime.cpp relies on this order in .bss
        link = ["-shared", *(flag for flag in _KERNEL[checks] if flag == "-fsanitize=undefined"), *map(str, objects)]
        link += ["-ldl", "-o", str(folder / "library.so")]
        compile_file(program, source.name, link, log)
        return folder / "library.so"

    name = source.stem + (f"-{checks}" if checks else "")
    return cached(f"{name}-{cache_key(program, *made_from)}.so", compile_in)


@cache
def takes(program: str, flag: str) -> bool:
    """Whether the compiler accepts the flag."""
    tried = [program, flag, "-fsyntax-only", "-x", "c++", os.devnull]
    return not subprocess.run(tried, capture_output=True).returncode  # noqa: S603


def build_plain(program: str, source: Path, flags: Sequence[str]) -> Path:
    """Compile one C file, which may include headers beside it, into a shared library. EmulationError of kind "build" if that
    fails."""
    flags = (*flags, "-fPIC", "-shared", *native())

    def compile_in(folder: Path, log: Path) -> Path:
        compile_file(program, source.name, [*flags, str(source), "-o", str(folder / "library.so")], log)
        return folder / "library.so"

    key = cache_key(program, flags, source, *sorted(source.parent.glob("*.h")))
    return cached(f"{source.stem}-{key}.so", compile_in)


def runtime_object(program: str, name: str) -> Path:
    """The object file of NAME.cpp, a part of the runtime. "begin" and "end" have no source: they mark the begin and the end of a
    library's __shared__ variables."""
    flags = (*COMMON, "-O2", "-fno-omit-frame-pointer")  # host_memory.cpp walks the frames
    key = cache_key(program, flags, *sorted(HERE.glob("*.h")), *sorted(HERE.glob("*.cpp")))

    def compile_in(folder: Path, log: Path) -> Path:
        source = HERE / f"{name}.cpp"
        if name in ("begin", "end"):
            source = folder / f"{name}.cpp"
            source.write_text(f'extern "C" {{ alignas(128) char shared_{name}[128]; }}\n', encoding="utf-8")
        compile_file(program, source.name, [*flags, "-c", str(source), "-o", str(folder / f"{name}.o")], log)
        return folder / f"{name}.o"

    return cached(f"{name}-{key}.o", compile_in)


def compile_file(program: str, what: str, arguments: Sequence[str], log: Path, reads: Sequence[Path] | None = None) -> str:
    """Run the compiler, and return its warnings. The last argument is the output file.

    `what`: the source's name in messages. `log`: gets the compiler's output if it fails. `reads`: of an untrusted source, the
    files that the compiler may read besides its own; its time and memory are then limited. OSError when the disk is full;
    EmulationError of kind "build" for other failures.
    """
    folder = os.path.dirname(arguments[-1])  # its temporary files go there, too
    environment = {**os.environ, "TMPDIR": folder, "LC_ALL": "C"}  # NO_ROOM's messages are searched in this locale
    try:
        command = [program, *arguments]
        if reads is not None:
            from hybrid.emulation.child import run_limited  # slow to import, and most compilations need no limits

            done = run_limited(what, command, environment, [HERE, *reads], Path(folder))
        else:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)  # noqa: S603
    except OSError as error:
        raise EmulationError("build", f"the compiler {program} cannot be run: {one_line(error)}") from None
    if not done.returncode:
        return done.stderr
    for code in NO_ROOM:
        if os.strerror(code) in done.stderr:
            raise OSError(code, os.strerror(code), folder)
    log.write_text(f"{program} {' '.join(arguments)}\n{done.stdout}{done.stderr}", encoding="utf-8")
    lines = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines() or ["no message"]
    raise EmulationError("build", f"{what} does not compile for the CPU: {lines[0].strip()} (all of it: {log})")


def native() -> tuple[str, ...]:
    """The flag for all of this CPU's instructions; none where compilers do not agree on its name."""
    return ("-march=native",) if platform.machine() in ("x86_64", "aarch64") else ()
