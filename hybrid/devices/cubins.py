# SPDX-License-Identifier: MIT
"""Kernels for one architecture alone, such as sm_90a, which CuPy does not compile for: by NVRTC directly, kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybrid.core.private_folder import cache_folder
from hybrid.errors import DeviceUnavailable
from hybrid.host.files import atomic_write
from hybrid.kernels.sources import KERNELS


def functions_for(architecture: str, source: str, expressions: Sequence[str], options: tuple[str, ...]) -> dict[str, Any]:
    """Instances of templates in one of the kernels' sources, as CuPy functions for the current GPU."""
    import cupy
    from cupy_backends.cuda.libs import nvrtc

    text = (KERNELS / source).read_text(encoding="utf-8")
    options = (f"-arch={architecture}", "-default-device", *options)
    what = json.dumps([nvrtc.getVersion(), text, [*options], [*expressions]])
    base = cache_folder("cubin") / f"{Path(source).stem}-{hashlib.sha256(what.encode()).hexdigest()[:24]}"
    names_file, cubin_file = base.with_suffix(".json"), base.with_suffix(".cubin")
    if not (names_file.exists() and cubin_file.exists()):
        names, cubin = _compiled(nvrtc, source, text, expressions, options)
        for path, content in ((cubin_file, cubin), (names_file, json.dumps(names).encode())):
            with atomic_write(str(path)) as temporary:
                temporary.write_bytes(content)
    names = json.loads(names_file.read_text())
    module = cupy.RawModule(path=str(cubin_file))
    return {expression: module.get_function(names[expression]) for expression in expressions}


def _compiled(
    nvrtc: Any, source: str, text: str, expressions: Sequence[str], options: tuple[str, ...]
) -> tuple[dict[str, str], bytes]:
    """The kernels' mangled names, and their machine code."""
    program = nvrtc.createProgram(text, source, (), ())
    try:
        for expression in expressions:
            nvrtc.addNameExpression(program, expression)
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            raise DeviceUnavailable(f"{source} does not compile: {nvrtc.getProgramLog(program) or error}") from error
        return {expression: nvrtc.getLoweredName(program, expression) for expression in expressions}, nvrtc.getCUBIN(program)
    finally:
        nvrtc.destroyProgram(program)
