# SPDX-License-Identifier: MIT
"""Transposed matrices of the root on a device: copied as they lie, and turned there."""

from __future__ import annotations

import numpy as np
import pytest
from support.faults import Planted, columns_exchanged, element, lowest_bit, rows_exchanged

import hybrid
from hybrid.devices.emulated import EmulatedDevice
from hybrid.errors import CheckFailed


@pytest.fixture
def copied_in(monkeypatch):
    """What goes to the emulated GPU."""
    sources, original = [], EmulatedDevice.copy_in

    def copy_in(device, into, source, after):
        sources.append(source)
        return original(device, into, source, after)

    monkeypatch.setattr(EmulatedDevice, "copy_in", copy_in)
    return sources


@pytest.mark.mpi
@pytest.mark.needs("compiler")
@pytest.mark.parametrize(
    "way", [{}, {"PANEL_ROWS": "40", "PANEL_COLUMNS": "64"}, {"SLAB_ROWS": "50"}, {"CHECK": "host"}], ids=str
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_transposed_matrices_go_to_devices_as_they_lie(comm, rng, monkeypatch, copied_in, way, dtype):
    for name, value in (({"TRANSPORT": "peers"} if comm.size > 1 else {}) | way | {"POISON": "1"}).items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((171, 130), (149, 171)))
    operands = (a, b) if comm.rank == 0 else (None, None)
    how = {"transpose_a": True, "transpose_b": True, "device": "emulate", "comm": comm}
    hybrid.multiply(*operands, **how)  # with the test whether ranks reach each other's devices
    copied_in.clear()
    c = hybrid.multiply(*operands, **how, dtype="float32" if dtype == "float16" else None)
    if comm.rank == 0:
        np.testing.assert_allclose(c, a.T.astype(float) @ b.T.astype(float), rtol=1e-3, atol=1e-3)
        assert copied_in
        assert all(np.may_share_memory(source, a) or np.may_share_memory(source, b) for source in copied_in)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("spoil", [element, lowest_bit, rows_exchanged, columns_exchanged])
def test_a_wrong_copy_of_a_transposed_matrix_is_found(rng, monkeypatch, dtype, spoil):
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((171, 130), (149, 171)))
    for _ in range(2):  # with NumPy, and then in C if that is compiled by now
        planted = Planted(monkeypatch, "copy_in", spoil, 0)
        with pytest.raises(CheckFailed):
            hybrid.multiply(a, b, transpose_a=True, transpose_b=True, device="emulate")
        assert planted.done
