# SPDX-License-Identifier: MIT
"""python -m hybrid.matmul whose process is killed at one of its file operations: before it, amid it or after it.

python dies_at.py COUNT MOMENT ARGUMENTS …: at the COUNT-th (from 0) write, flush, rename, removal or change of size of a file.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_counted = 0


def deadly(real: Callable[..., Any], count: int, moment: str) -> Callable[..., Any]:
    def operation(*arguments: Any, **more: Any) -> Any:
        global _counted
        number, _counted = _counted, _counted + 1
        if number == count and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if number == count and moment == "amid" and real is _pwrite:
            descriptor, data, at = arguments
            arguments = descriptor, memoryview(data)[: len(data) // 2], at
        try:
            return real(*arguments, **more)
        finally:
            if number == count:
                os.kill(os.getpid(), signal.SIGKILL)

    return operation


_pwrite = os.pwrite

if __name__ == "__main__":
    for name in ("pwrite", "fsync", "replace", "unlink", "ftruncate", "truncate"):
        setattr(os, name, deadly(getattr(os, name), int(sys.argv[1]), sys.argv[2]))
    del sys.argv[1:3]
    from hybrid.commands.matmul import main

    sys.exit(main())
