# SPDX-License-Identifier: MIT
"""Compiles kernels of a .cu file into a shared library for the CPU, by the machine's C++ compiler, and caches it on disk."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from hybrid.core import private_folder
from hybrid.emulation.errors import EmulationError
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.kernels.sources import KERNELS

HERE = Path(__file__).resolve().parent

# No strict aliasing: kernels load elements as float4 or double2. No contraction to fused multiply-adds: the kernels say where
# they want one. No warnings: nvcc gives those.
COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-fno-strict-aliasing", "-ffp-contract=off", "-w")
_LINES = ("-g1", "-gdwarf-4")  # of version 5, addr2line sometimes names the wrong file
_KERNEL = {
    "": ("-O2",),
    "undefined": ("-O1", "-g1", "-fsanitize=undefined", "-fno-sanitize-recover=all"),
    "address": ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
    "threads": ("-O1", "-g1", "-fsanitize=thread"),
    # Not -O0, where every use of a variable that a lambda captures is a counted access, and kernels take minutes. At -O1 two
    # loads of the same element may be merged, as nvcc may do, too.
    "loads": ("-O1", "-fsanitize=thread"),
    "requests": ("-O1", *_LINES, "-fsanitize=thread", "-fsanitize-coverage=trace-pc,trace-cmp"),
    "trace": ("-O0", *_LINES, "-fsanitize=thread"),  # each turn of a loop by itself
}
_RUNTIME = {"address": ("-DCHECKS_ADDRESS",), "threads": ("-DCHECKS_THREADS",)}
POISON = "-ftrivial-auto-var-init=pattern"  # GCC from 12 on, clang from 8 on
# Files of our own functions that are linked instead of a sanitizer's runtime.
_OWN = {"loads": ("loads",), "requests": ("requests", "branches"), "trace": ("trace",)}
_LINK = {
    "undefined": ("-fsanitize=undefined",),
    "address": ("-fsanitize=address,undefined",),
    "threads": ("-fsanitize=thread",),
}
CHECKS = tuple(_KERNEL)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # a full disk, a full quota


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
        "CC",
        ("gcc", "clang", "cc"),
        "C",
        "the loops on the CPU (--kernel loops) need a C compiler: apt-get install gcc (or set CC)",
    )


def _program(variable: str, names: Sequence[str], language: str, missing: str) -> str:
    asked_for = os.environ.get(variable)
    for name in [asked_for] if asked_for else names:
        if path := shutil.which(name):
            return path
    if asked_for:
        raise DeviceUnavailable(f"{variable}={asked_for} is not a program: let it name a {language} compiler, or nothing")
    raise DeviceUnavailable(missing)


def build(
    source: Path, expressions: Sequence[str], *, capability: int = 90, checks: str = "", poison_locals: bool = False
) -> Path:
    """A shared library with these instances of the kernels in `source` as functions run_0, run_1, ...

    Headers are searched beside `source`, then among the project's kernels. `capability`: the compute capability, times ten,
    that sets __CUDA_ARCH__. `poison_locals`: variables begin with values that no right kernel has, where the compiler
    can do that. EmulationError of kind "build" when they do not compile.
    """
    source, program = source.resolve(), compiler()
    poison = (POISON,) if poison_locals and takes(program, POISON) else ()
    flags = (*COMMON, *poison, *_KERNEL[checks], *native(), f"-D__CUDA_ARCH__={capability * 10}")
    entries = "".join(
        f'extern "C" __attribute__((visibility("default"))) int run_{i}(const cuda_on_cpu::Launch* launch,\n'
        f"    const cuda_on_cpu::Array* arrays, int count, char* error, size_t error_size)\n"
        f"{{ return cuda_on_cpu::start({expression}, launch, arrays, count, error, error_size); }}\n"
        for i, expression in enumerate(expressions)
    )
    headers = sorted({*source.parent.glob("*.cuh"), *KERNELS.glob("*.cuh")})
    key = cache_key(program, flags, entries, source, *headers, *sorted(HERE.glob("*.h")), *sorted(HERE.glob("*.cpp")))
    name = source.stem + (f"-{checks}" if checks else "")

    def compile_in(folder: Path, log: Path) -> Path:
        text = folder / f"{source.stem}.cpp"
        # The anonymous namespace keeps symbols of several loaded libraries apart.
        text.write_text(f'namespace {{\n#include "{source.name}"\n}}\n{entries}', encoding="utf-8")
        short = [f"-ffile-prefix-map={prefix}/=" for prefix in (source.parent, KERNELS)]  # so that messages say tiled.cu:20
        include = ["-include", str(HERE / "cuda_on_cpu.h"), "-iquote", str(source.parent), "-I", str(HERE), "-I", str(KERNELS)]
        compile_file(program, source.name, [*flags, *short, *include, "-c", str(text), "-o", str(folder / "kernel.o")], log)
        first, last, *others = _runtime(program, checks)
        objects = [first, folder / "kernel.o", last, *others]  # their order in .bss, which runtime.cpp relies on
        link = ["-shared", *_LINK.get(checks, ()), *map(str, objects), "-o", str(folder / "library.so")]
        compile_file(program, source.name, link, log)
        return folder / "library.so"

    return cached(f"{name}-{key}.so", compile_in)


@cache
def takes(program: str, flag: str) -> bool:
    """Whether the compiler knows this flag."""
    tried = [program, flag, "-fsyntax-only", "-x", "c++", os.devnull]
    return not subprocess.run(tried, capture_output=True).returncode  # noqa: S603


def build_plain(program: str, source: Path, flags: Sequence[str]) -> Path:
    """A shared library of one ordinary C file and the headers beside it, by this compiler. EmulationError of kind "build" if it
    fails."""
    flags = (*flags, "-fPIC", "-shared", *native())

    def compile_in(folder: Path, log: Path) -> Path:
        compile_file(program, source.name, [*flags, str(source), "-o", str(folder / "library.so")], log)
        return folder / "library.so"

    key = cache_key(program, flags, source, *sorted(source.parent.glob("*.h")))
    return cached(f"{source.stem}-{key}.so", compile_in)


def _runtime(program: str, checks: str) -> list[Path]:
    """The object files that are linked to every kernel, compiled once."""
    flags = (*COMMON, "-O2", *_RUNTIME.get(checks, ()))
    key = cache_key(program, flags, checks, *sorted(HERE.glob("*.h")), *sorted(HERE.glob("*.cpp")))

    def compile_in(folder: Path, log: Path, name: str) -> Path:
        source = HERE / f"{name}.cpp"
        if name in ("first", "last"):
            source = folder / f"{name}.cpp"
            source.write_text(f'extern "C" {{ alignas(128) char shared_{name}[128]; }}\n', encoding="utf-8")
        compile_file(program, source.name, [*flags, "-c", str(source), "-o", str(folder / f"{name}.o")], log)
        return folder / f"{name}.o"

    names = ("first", "last", "runtime", *_OWN.get(checks, ()))
    return [cached(f"{name}-{key}.o", partial(compile_in, name=name)) for name in names]


def compile_file(program: str, what: str, arguments: Sequence[str], log: Path) -> str:
    """Run the compiler: its warnings. The last argument is the file that it makes. OSError where there is no room for that.

    If it fails otherwise, all of its output is written to `log`.
    """
    folder = os.path.dirname(arguments[-1])  # where there must be room for its temporary files, too
    environment = {**os.environ, "TMPDIR": folder, "LC_ALL": "C"}  # C: its words for a full disk are known
    try:
        done = subprocess.run(  # noqa: S603
            [program, *arguments], capture_output=True, text=True, errors="replace", env=environment
        )
    except OSError as error:
        raise EmulationError("build", f"the compiler {program} cannot be run: {one_line(error)}") from None
    if not done.returncode:
        return done.stderr
    for code in _NO_ROOM:
        if os.strerror(code) in done.stderr:
            raise OSError(code, os.strerror(code), folder)
    log.write_text(f"{program} {' '.join(arguments)}\n{done.stdout}{done.stderr}", encoding="utf-8")
    lines = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines() or ["no message"]
    raise EmulationError("build", f"{what} does not compile for the CPU: {lines[0].strip()} (all of it: {log})")


def cached(name: str, compile_in: Callable[[Path, Path], Path]) -> Path:
    """The file `name` of the cache: as this user has compiled it, else as `compile_in` a temporary folder makes it.

    Where the cache has no room for it, it is kept among the temporary files. DeviceUnavailable if that fails, too.
    """
    folder = cache_folder()
    try:
        return _kept(folder / name, compile_in)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise _unusable(str(folder), error) from None
        full = OSError(error.errno, error.strerror, str(folder))
    where = str(folder)
    try:
        other = private_folder.temporary_folder("emulation")
        where = f"{folder}, nor in {other}" if other != folder else where
        kept = _kept(other / name, compile_in)
    except OSError as error:
        raise _unusable(where, error) from None
    private_folder.say_elsewhere(other, full)
    return kept


def _kept(path: Path, compile_in: Callable[[Path, Path], Path]) -> Path:
    """Moved there atomically: ranks may compile the same at once. What others could have put there is replaced."""
    if not private_folder.is_own(path):
        with tempfile.TemporaryDirectory(prefix=".building-", dir=path.parent) as folder:
            file = compile_in(Path(folder), path.with_suffix(".log"))
            file.chmod(0o700)
            os.replace(file, path)
    return path


def cache_folder() -> Path:
    """The private folder of compiled libraries, created if needed. DeviceUnavailable if that fails."""
    try:
        return private_folder.cache_folder("emulation")
    except OSError as error:
        raise _unusable("the cache, nor in the folder for temporary files", error) from None


def _unusable(where: str, error: OSError) -> DeviceUnavailable:
    why = error.strerror or one_line(error)
    room = "make room there, or " if error.errno in _NO_ROOM else ""
    return DeviceUnavailable(f"compiled kernels cannot be kept in {where} ({why}): {room}set HYBRID_CACHE")


def cache_key(program: str, *parts: object) -> str:
    """A hash of all that a library depends on: texts, files' contents, the compiler and the CPU."""
    digest = hashlib.sha256()
    for part in (_version(program), _cpu(), *parts):
        content = part.name.encode() + part.read_bytes() if isinstance(part, Path) else repr(part).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:20]


@cache
def _version(path: str) -> str:
    try:
        return subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace").stdout  # noqa: S603
    except OSError as error:
        raise EmulationError("build", f"the compiler {path} cannot be run: {one_line(error)}") from None


@cache
def _cpu() -> str:
    """The model and the features of this CPU, on which -march=native depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}))


def native() -> tuple[str, ...]:
    return ("-march=native",) if platform.machine() in ("x86_64", "aarch64") else ()
