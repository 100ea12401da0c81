# SPDX-License-Identifier: MIT
"""Compiles a student's kernel with NVRTC: `python -m hybrid.classroom.nvrtc_log FILE INSTANCE CAPABILITY` is a child process,
since NVRTC is a library, and has a compiler's limits only in a process of its own. It prints a line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hybrid.classroom.own_kernel import assembler_log
from hybrid.errors import DeviceUnavailable, one_line


def main(file: str, instance: str, capability: str) -> None:
    try:
        log, architecture = assembler_log(Path(file).read_text(encoding="utf-8"), instance, int(capability))
        print(json.dumps({"log": log, "architecture": architecture}))
    except DeviceUnavailable as error:
        print(json.dumps({"unavailable": one_line(error)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
