"""From a .cu file to a shared library with some of its kernels, by the machine's C++ compiler; kept for the next time."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from hybrid.emulation.errors import EmulationError
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.kernels.sources import KERNELS

HERE = Path(__file__).resolve().parent


# No aliasing rules: kernels read numbers as vectors. No multiplication and addition become one by themselves: which of them
# do is the kernel's choice. No warnings: the code is nvcc's to judge.
_COMMON = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-fno-strict-aliasing", "-ffp-contract=off", "-w")
_KERNEL = {
    "": ("-O2",),
    "undefined": ("-O1", "-g1", "-fsanitize=undefined", "-fno-sanitize-recover=all"),
    "address": ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
    "threads": ("-O1", "-g1", "-fsanitize=thread"),
    # Not -O0: there every mention of a variable captured by reference is an access, and the kernels take minutes. At -O1 two
    # loads of the same element may become one, as they may on a GPU.
    "loads": ("-O1", "-fsanitize=thread"),
}
_RUNTIME = {"address": ("-DCHECKS_ADDRESS",), "threads": ("-DCHECKS_THREADS",)}
# Counting links our own functions in the place of the race checker's.
_LINK = {
    "undefined": ("-fsanitize=undefined",),
    "address": ("-fsanitize=address,undefined",),
    "threads": ("-fsanitize=thread",),
}
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


def build(source: Path, expressions: Sequence[str], *, capability: int = 90, checks: str = "") -> Path:
    """A shared library with these instances of the kernels in `source`: run_0, run_1, ... in their order.

    Headers are looked for beside `source`, then among the project's kernels. `capability`: the GPU's that the kernels shall
    take this CPU for, times ten. EmulationError of kind "build" when they do not compile.
    """
    source = source.resolve()
    flags = (*_COMMON, *_KERNEL[checks], *_native(), f"-D__CUDA_ARCH__={capability * 10}")
    entries = "".join(
        f'extern "C" __attribute__((visibility("default"))) int run_{i}(const cuda_on_cpu::Launch* launch,\n'
        f"    const cuda_on_cpu::Array* arrays, int count, char* error, size_t error_size)\n"
        f"{{ return cuda_on_cpu::start({expression}, launch, arrays, count, error, error_size); }}\n"
        for i, expression in enumerate(expressions)
    )
    headers = sorted({*source.parent.glob("*.cuh"), *KERNELS.glob("*.cuh")})
    program = compiler()
    key = _key(program, flags, entries, source, *headers, *sorted(HERE.glob("*.h")), *sorted(HERE.glob("*.cpp")))
    name = source.stem + (f"-{checks}" if checks else "")
    library = cache_folder() / f"{name}-{key}.so"
    if not library.exists():
        with _beside(library) as folder:
            text = folder / f"{source.stem}.cpp"
            # Anonymous: nothing of one library is taken for another's. The file's own folder comes first by itself.
            text.write_text(f'namespace {{\n#include "{source.name}"\n}}\n{entries}', encoding="utf-8")
            short = [f"-ffile-prefix-map={place}/=" for place in (source.parent, KERNELS)]  # messages: tiled.cu:20
            include = [
                "-include",
                str(HERE / "cuda_on_cpu.h"),
                "-iquote",
                str(source.parent),
                "-I",
                str(HERE),
                "-I",
                str(KERNELS),
            ]
            _compile(program, source.name, [*flags, *short, *include, "-c", str(text), "-o", str(folder / "kernel.o")], library)
            first, last, *others = _runtime(program, checks)
            objects = [first, folder / "kernel.o", last, *others]  # in this order in .bss as well: see runtime.cpp
            link = ["-shared", *_LINK.get(checks, ()), *map(str, objects), "-o", str(folder / "library.so")]
            _compile(program, source.name, link, library)
            os.replace(folder / "library.so", library)
    return library


def build_plain(program: str, source: Path, flags: Sequence[str]) -> Path:
    """A shared library of one file that needs no runtime, by this compiler. EmulationError of kind "build" if it fails."""
    flags = (*flags, "-fPIC", "-shared", *_native())
    library = cache_folder() / f"{source.stem}-{_key(program, flags, source)}.so"
    if not library.exists():
        with _beside(library) as folder:
            _compile(program, source.name, [*flags, str(source), "-o", str(folder / "library.so")], library)
            os.replace(folder / "library.so", library)
    return library


def _runtime(program: str, checks: str) -> list[Path]:
    """The object files that go with every kernel, made once."""
    flags = (*_COMMON, "-O2", *_RUNTIME.get(checks, ()))
    sources = [*sorted(HERE.glob("*.h")), *sorted(HERE.glob("*.cpp"))]
    made = cache_folder() / f"runtime-{_key(program, flags, checks, *sources)}"
    names = ["runtime", "loads"] if checks == "loads" else ["runtime"]
    if not made.is_dir():
        with _beside(made) as folder:
            for edge in ("first", "last"):
                (folder / f"{edge}.cpp").write_text(f'extern "C" {{ alignas(128) char shared_{edge}[128]; }}\n', encoding="utf-8")
                _compile(program, edge, [*flags, "-c", str(folder / f"{edge}.cpp"), "-o", str(folder / f"{edge}.o")], made)
            for name in names:
                runtime = ["-c", str(HERE / f"{name}.cpp"), "-o", str(folder / f"{name}.o")]
                _compile(program, f"{name}.cpp", [*flags, *runtime], made)
            try:
                (folder / "done").mkdir()
                for name in ("first", "last", *names):
                    os.replace(folder / f"{name}.o", folder / "done" / f"{name}.o")
                os.rename(folder / "done", made)
            except OSError:
                if not made.is_dir():  # else another process was faster, with the same
                    raise
    return [made / f"{name}.o" for name in ("first", "last", *names)]


def _compile(program: str, what: str, arguments: Sequence[str], target: Path) -> None:
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, errors="replace")  # noqa: S603
    except OSError as error:
        raise EmulationError("build", f"the compiler {program} cannot be run: {one_line(error)}") from None
    if done.returncode:
        log = target.with_suffix(".log")
        log.write_text(f"{program} {' '.join(arguments)}\n{done.stdout}{done.stderr}", encoding="utf-8")
        lines = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines() or ["no message"]
        raise EmulationError("build", f"{what} does not compile for the CPU: {lines[0].strip()} (all of it: {log})")


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A folder of this process's own, from which a finished file is moved to `target`: ranks may build at the same time."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=".building-", dir=target.parent)
    except OSError as error:
        raise _unusable(target.parent, error) from None
    with folder as path:
        yield Path(path)


def cache_folder() -> Path:
    """Where what is built is kept; made if it is not there. DeviceUnavailable if that cannot be."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "hybrid-runner" / "emulation"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from None
    return folder


def _unusable(folder: Path, error: OSError) -> DeviceUnavailable:
    return DeviceUnavailable(f"compiled kernels cannot be kept in {folder} ({one_line(error)}): set XDG_CACHE_HOME")


def _key(program: str, *parts: object) -> str:
    """Stands for all that a library is made from: texts, files' contents, the compiler and the CPU."""
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
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}))


def _native() -> tuple[str, ...]:
    return ("-march=native",) if platform.machine() in ("x86_64", "aarch64") else ()
