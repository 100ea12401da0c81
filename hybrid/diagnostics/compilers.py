# SPDX-License-Identifier: MIT
"""The C++ compiler of the emulated GPU, the C compiler of what makes products faster, the kernels that come as machine code, and
the folders where compiled kernels are cached."""

from __future__ import annotations

import os
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from importlib import util
from pathlib import Path

from hybrid.core.problem import record
from hybrid.core.text import ranges
from hybrid.devices.cuda_kernels import SHIPPED, trust_own_cache_only
from hybrid.diagnostics.finding import Finding, Unknown, attempt, ranks_by_value
from hybrid.emulation.build import c_compiler, compiler
from hybrid.emulation.cache import cache_folder
from hybrid.errors import DeviceUnavailable, HybridError, one_line
from hybrid.ranks.heartbeat import busy

_LIMIT = 30  # seconds to compile a small program
_PROGRAM = b"#include <tuple>\n#include <vector>\nint main() { auto [x, y] = std::tuple{1, 2}; return x + y - 3; }\n"


@record
class Tools:
    """The compiler and the caches of one host."""

    compiler: str  # its path
    compiler_trouble: str  # what is wrong with it; "" for nothing
    compiler_absent: bool
    caches: tuple[tuple[str, str], ...]  # folders, each with why nothing can be written there; "" if something can
    elsewhere: str = ""  # why a cache is not in its usual folder
    without_c: str = ""  # why there is no C compiler; "" if there is one
    shipped: tuple[str, ...] = ()  # the architectures whose machine code comes with the package


def inspect() -> Tools | Unknown:
    return attempt(_inspect)


def _inspect() -> Tools:
    path, trouble, absent = "", "", False
    try:
        path = compiler()
        trouble = _try_compiler(path)
    except DeviceUnavailable as missing:
        trouble, absent = str(missing), "CXX" not in os.environ
    try:
        c_compiler()
    except DeviceUnavailable as missing:
        without_c = str(missing)
    else:
        without_c = ""
    shipped = {file.name.split("-")[1] for file in SHIPPED.glob("*.xz")}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        caches = [_try_emulation_cache()]
        cupy = util.find_spec("cupy")
        if cupy is not None and cupy.origin:  # a package, not just a folder of that name
            trust_own_cache_only()
            if os.environ.get("CUPY_CACHE_IN_MEMORY") != "1":
                caches.append((os.environ["CUPY_CACHE_DIR"], ""))
    elsewhere = "; ".join(str(each.message) for each in said)
    return Tools(
        path,
        trouble,
        absent,
        tuple(caches),
        elsewhere,
        without_c,
        tuple(sorted(shipped, key=lambda name: (len(name.rstrip("a")), name))),
    )


def _try_compiler(path: str) -> str:
    """Why it does not compile C++17; "" if it does."""
    command = [path, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    try:
        with busy():
            done = subprocess.run(command, input=_PROGRAM, capture_output=True, timeout=_LIMIT, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"took more than {_LIMIT} s for four lines"
    except OSError as error:
        return one_line(error)
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").splitlines()
    return next((line for line in lines if "error" in line), f"ends with {done.returncode}").strip()


def _try_emulation_cache() -> tuple[str, str]:
    try:
        folder = cache_folder()
    except HybridError as error:
        return "", str(error)
    return str(folder), _try_folder(folder)


def _try_folder(folder: Path) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
    except OSError as error:
        return f"compiled kernels cannot be written to {folder} ({one_line(error)}): set HYBRID_CACHE"
    return ""


def judge(tools_of_ranks: Sequence[Tools | Unknown | None], hosts: Sequence[str], *, gpus: bool) -> list[Finding]:
    """`tools_of_ranks[rank]`: for one rank of each host, None for the others. `gpus`: some rank's GPU works, so none is
    emulated."""
    findings = []
    groups = {tools: ranks for tools, ranks in ranks_by_value(tools_of_ranks).items() if tools is not None}
    for tools, ranks in groups.items():
        who = "" if len(groups) == 1 else f"{hosts[ranks[0]]} (rank {ranges(ranks)}): "
        if isinstance(tools, Unknown):
            findings.append(Finding("compiler", "unknown", f"{who}{tools.reason}"))
            continue
        findings.append(_compiler(tools, who, gpus))
        troubles = [trouble for _, trouble in tools.caches if trouble]
        if troubles:
            what, _, remedy = troubles[0].rpartition(": ")
            findings.append(
                Finding(
                    "kernel cache", "wrong", f"{who}{what}", f"{remedy} to a folder that can be written to", code="kernel-cache"
                )
            )
        elif tools.elsewhere:
            findings.append(Finding("kernel cache", "note", f"{who}{tools.elsewhere}", code="kernel-cache"))
        else:
            kept = f"{who}{', '.join(folder for folder, _ in tools.caches)}"
            there = f"; machine code for {', '.join(tools.shipped)} comes with the package" if tools.shipped else ""
            findings.append(Finding("kernel cache", "ok", kept + there))
    return findings


def _compiler(tools: Tools, who: str, gpus: bool) -> Finding:
    slower = "checks, and copies of new arrays to GPUs, take several times as long without a C compiler"
    and_c = f"; {slower} ({tools.without_c})" if tools.without_c else ""
    if tools.compiler_absent:
        return Finding("compiler", "ok" if gpus else "note", f"{who}none; {tools.compiler_trouble}{and_c}", code="no-compiler")
    if tools.compiler_trouble:
        remedy = "let CXX name a C++17 compiler, or nothing; apt-get install g++"
        return Finding(
            "compiler", "wrong", f"{who}{tools.compiler or 'none'}: {tools.compiler_trouble}", remedy, code="no-compiler"
        )
    return Finding("compiler", "ok", f"{who}{tools.compiler}, for the emulated GPU{and_c}")
