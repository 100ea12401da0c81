# SPDX-License-Identifier: MIT
"""`python -m hybrid.paths ARGUMENTS`, below `python -m hybrid.testing --gpus N`: each rank writes to standard error, as JSON, how
many bytes of matrices it has copied between host memory and its GPU, for which NumPy stands."""

import json
import runpy
import sys
from collections import Counter

import cupy

from hybrid.testing import count

crossed: Counter[str] = Counter()


def counted(owner, name, from_gpu):
    original = getattr(owner, name)

    def copy(array, *given, **how):
        crossed[name] += getattr(array, "nbytes", 0) if isinstance(array, cupy.ndarray) == from_gpu else 0
        return original(array, *given, **how)

    setattr(owner, name, copy)


counted(cupy, "asarray", False)
counted(cupy, "asnumpy", True)
try:
    with count() as counts:
        runpy.run_module("hybrid.paths", run_name="__main__", alter_sys=True)
finally:
    found = {"copied_in": counts.copied_in, "copied_out": counts.copied_out, **crossed, "multiplied": counts.multiplications}
    print(json.dumps(found), file=sys.stderr)
