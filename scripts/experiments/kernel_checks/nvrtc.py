# SPDX-License-Identifier: MIT
"""NVIDIA's run-time compiler, and what its log says of the kernels it made."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybrid.classroom.registers import Resources, resources_in
from hybrid.devices.cuda_kernels import compile_options
from hybrid.errors import HybridError


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
