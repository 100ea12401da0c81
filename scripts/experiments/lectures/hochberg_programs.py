# SPDX-License-Identifier: MIT
"""The matrix lecture's two programs, call by call, printing what they print: multNoShare and multShare."""

import secrets
import sys
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from experiments.common import cli, cuda, product_check, timing
from hybrid.reporting.run_report import top_left

DTYPE, PRINTED = "float32", 10
MODULE_PROGRAMS = {"multNoShare": "naive", "multShare": "tiled"}  # the kernel of each
NO_ERROR = "no error"  # as CUDA says it
_UNPRINTED = {"multShare": ("Copy A to device", "Copy B to device")}


def run_program(
    program: str,
    runtime: cuda.CudaRuntime,
    sizes: tuple[int, int, int],
    seed: int | None = None,
    *,
    check: bool = True,
    out: TextIO | None = None,
) -> None:
    """For sizes a1, a2, b2: A (a1×a2) of {0,1,2} times B (a2×b2) of {0,1}; unseeded, as there, without a seed.

    The lecture's programs go on after a call that failed, with a C of anything; here it is said, and CallFailed raised.
    """
    out = out or sys.stdout
    a1, a2, b2 = sizes
    cli.refuse_too_large(a1, a2, b2)
    a, b = timing.matrices("lecture", DTYPE, a1, a2, b2, secrets.randbits(63) if seed is None else seed)
    c = np.full((a1, b2), np.nan, DTYPE)

    def call(what: str, work: Callable[[], Any]) -> Any:
        try:
            result = work()
        except cuda.CallFailed as failed:
            print(f"{what}: {failed}", file=out)
            raise cuda.CallFailed(f"{what}: {failed}") from None
        if what not in _UNPRINTED.get(program, ()):
            print(f"{what}: {NO_ERROR}", file=out)
        return result

    def run_kernel() -> None:
        runtime.launch(timing.kernel_of(MODULE_PROGRAMS[program]), on_a, on_b, on_c)
        runtime.synchronize()

    try:
        on_a = call("CUDA malloc A", lambda: runtime.allocate(a1, a2, DTYPE))
        call("Copy A to device", lambda: runtime.copy(on_a, a))
        on_b = call("CUDA malloc B", lambda: runtime.allocate(a2, b2, DTYPE))
        call("Copy B to device", lambda: runtime.copy(on_b, b))
        on_c = call("CUDA malloc C", lambda: runtime.allocate(a1, b2, DTYPE))
        call("Run kernel", run_kernel)
        call("Copy C off of device", lambda: runtime.copy(c, on_c))
    finally:
        runtime.release()
    for matrix in (a, b, c):
        out.write(top_left(matrix[:PRINTED, :PRINTED]))
    if check:
        product_check.refuse_wrong(program, a, b, c)
