# SPDX-License-Identifier: MIT
"""Kernels for one architecture alone, such as sm_90a, which CuPy does not compile for. They are compiled by NVRTC directly, and
the machine code is kept on disk."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hybrid.core.private_folder import Elsewhere, cache_folder
from hybrid.errors import DeviceUnavailable, HybridError
from hybrid.host.files import atomic_write
from hybrid.kernels.sources import KERNELS

Compiled = tuple[dict[str, str], bytes]  # the kernels' mangled names, and their machine code


def functions_for(architecture: str, source: str, expressions: Sequence[str], options: tuple[str, ...]) -> dict[str, Any]:
    """Instances of templates in one of the kernels' sources, as CuPy functions, loaded on the current GPU."""
    import cupy
    from cupy_backends.cuda.libs import nvrtc

    text = (KERNELS / source).read_text(encoding="utf-8")
    options = (f"-arch={architecture}", "-default-device", *options)
    what = json.dumps([nvrtc.getVersion(), text, [*options], [*expressions]])
    name = f"{Path(source).stem}-{hashlib.sha256(what.encode()).hexdigest()[:24]}"
    names, cubin = kept(name, lambda: _compiled(nvrtc, source, text, expressions, options))
    module = cupy.cuda.Module()
    module.load(cubin)
    return {expression: module.get_function(names[expression]) for expression in expressions}


def kept(name: str, compiled: Callable[[], Compiled]) -> Compiled:
    """What is kept on disk under this name. Where nothing is, or it is damaged, it is compiled now and kept."""
    file = cache_folder("cubin") / f"{name}.cubin"
    with suppress(OSError, ValueError, LookupError, TypeError):
        header, cubin = file.read_bytes().split(b"\n", 1)
        described = json.loads(header)
        if hashlib.sha256(cubin).hexdigest() == described["sha256"]:
            return described["names"], cubin
    names, cubin = compiled()
    header = json.dumps({"sha256": hashlib.sha256(cubin).hexdigest(), "names": names}).encode()
    try:
        with atomic_write(str(file)) as temporary:
            temporary.write_bytes(header + b"\n" + cubin)
    except HybridError as error:
        warnings.warn(f"kernels will be compiled again by the next process: {error}", Elsewhere, stacklevel=2)
    return names, cubin


def _compiled(nvrtc: Any, source: str, text: str, expressions: Sequence[str], options: tuple[str, ...]) -> Compiled:
    program = nvrtc.createProgram(text, source, (), ())
    try:
        for expression in expressions:
            nvrtc.addNameExpression(program, expression)
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            raise DeviceUnavailable(
                f"{source} does not compile: {nvrtc.getProgramLog(program) or error}", code="compile-failed"
            ) from error
        return {expression: nvrtc.getLoweredName(program, expression) for expression in expressions}, nvrtc.getCUBIN(program)
    finally:
        nvrtc.destroyProgram(program)
