# SPDX-License-Identifier: MIT
"""How scripts/bench_hosts.py calls cuBLASXt: by functions with cuBLASXt's signatures, on the CPU."""

from __future__ import annotations

import ctypes
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.needs import skip_without

from experiments.hosts.programs import cublasxt
from experiments.hosts.programs.cublasxt import BLOCKS, CublasXt, measured
from hybrid.emulation.build import build_plain, c_compiler
from hybrid.errors import CheckFailed

SOURCE = Path(__file__).with_name("cublasxt_on_cpu.c")


@pytest.fixture
def library(tmp_path):
    """A copy of its own, because the counters belong to the library."""
    skip_without("c compiler")
    built = build_plain(c_compiler(), SOURCE, ["-std=c11", "-O2", "-Wall", "-Werror"])
    return ctypes.CDLL(shutil.copy(built, tmp_path / "cublasxt.so"))


def test_row_major_products_of_any_shape(library):
    a, b, c = np.random.rand(5, 3), np.random.rand(3, 7), np.full((5, 7), np.nan)
    with closing(CublasXt(library, 2)) as xt:
        xt.set_up(2048, registers=False)
        xt.multiply(a, b, c)
        assert ctypes.c_int.in_dll(library, "open_handles").value == 1
    assert np.allclose(c, a @ b)
    assert ctypes.c_int.in_dll(library, "open_handles").value == 0


def test_each_kind_of_operands_with_each_block_size(library):
    made = []

    def page_locked(shape, dtype):
        made.append(np.empty(shape, dtype))
        return made[-1]

    blocks = ctypes.c_int.in_dll(library, "last_block")
    lines = []
    with closing(CublasXt(library, 1)) as xt:
        for part, times, more in measured(xt, 20, 2, page_locked):
            assert blocks.value == more["block"]
            assert len(times) == 2
            assert min(*times, more["setup"]) > 0
            assert 0 <= more["error"] < 1e-14
            lines.append((part, more["block"]))
    kinds = ("page-locked", "registered", "pageable")
    assert lines == [(f"cublasxt, {kind}", block) for kind in kinds for block in BLOCKS]
    assert list((ctypes.c_int * 2).in_dll(library, "products")) == [2 * 3 * len(BLOCKS), 3 * len(BLOCKS)]
    assert len(made) == 3
    assert np.allclose(made[2], made[0] @ made[1]), "products of page-locked operands go into page-locked memory"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda library: CublasXt(library, 3), "cublasXtDeviceSelect ended with cuBLAS status 7"),
        (lambda library: CublasXt(library, 1).set_up(0, False), "cublasXtSetBlockDim ended with cuBLAS status 7"),
        (lambda library: CublasXt(library, 1).multiply(*np.ones((3, 4, 4))), "cublasXtDgemm ended with cuBLAS status 1"),
    ],
)
def test_a_function_that_fails_is_named_with_its_status(library, call, text):
    with pytest.raises(RuntimeError, match=text):
        call(library)


def test_a_product_that_is_not_written_is_refused(library, monkeypatch):
    monkeypatch.setattr(cublasxt.CublasXt, "multiply", lambda self, a, b, c: None)
    with pytest.raises(CheckFailed, match="the product of page-locked operands in blocks of 2048 is wrong"):
        list(measured(CublasXt(library, 1), 20, 1, np.empty))
