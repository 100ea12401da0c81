# SPDX-License-Identifier: MIT
"""Where CuPy's module for NCCL and its library come from, on made-up installations."""

from __future__ import annotations

import ctypes
import importlib
import sys
import warnings

import pytest

from hybrid.core.installation import install
from hybrid.core.spans import Span
from hybrid.devices import nccl
from hybrid.devices.nccl import load_nccl
from hybrid.errors import DeviceUnavailable

FILES = {
    "cupy/__init__.py": "",
    "cupy/cuda/__init__.py": "",
    # As CuPy does: it looks once, and warns of what it does not find.
    "cupy/cuda/nccl.py": """
import warnings
available = True
try:
    from cupy_backends.cuda.libs.nccl import *
except ImportError as error:
    available = False
    warnings.warn(f"nccl library could not be loaded.\\n\\nReason: {error}")
""",
    "cupy_backends/__init__.py": "",
    "cupy_backends/cuda/__init__.py": "",
    "cupy_backends/cuda/libs/__init__.py": "",
    "cupy_backends/cuda/libs/nccl.py": """
import ctypes
if not ctypes.found:
    raise ImportError("libnccl.so.2: cannot open shared object file")
available, who = True, "cupy"
""",
    "nvidia/__init__.py": "",  # hides what is really installed
}
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """(files besides, or in place of, `FILES`; None takes one away), and whether the loader finds the library."""
    ours = ("cupy", "cupy_backends", "nvidia")
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ours}

    def forget():
        for name in [name for name in sys.modules if name.split(".")[0] in ours]:
            del sys.modules[name]

    def install(changes, found):
        for name, text in (FILES | changes).items():
            if text is not None:
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(text)
        monkeypatch.setattr(ctypes, "found", found, raising=False)
        monkeypatch.syspath_prepend(tmp_path)
        forget()
        load_nccl.cache_clear()
        return tmp_path

    yield install
    forget()
    sys.modules.update(kept)
    load_nccl.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture
def opened(monkeypatch):
    """What is loaded by its path; from then on it is found."""
    paths = []

    def load(path, mode):
        paths.append((path, mode))
        monkeypatch.setattr(ctypes, "found", True)

    monkeypatch.setattr(ctypes, "CDLL", load)
    return paths


def test_a_library_that_the_system_finds_is_taken(installed, opened):
    installed({LIBRARY: ""}, found=True)
    assert load_nccl().who == "cupy"
    assert opened == []


def test_else_the_one_that_pip_installed(installed, opened):
    folder = installed({LIBRARY: ""}, found=False)
    assert load_nccl().who == "cupy"
    assert opened == [(str(folder / LIBRARY), ctypes.RTLD_GLOBAL)]


def test_one_that_cannot_be_loaded_is_told(installed, monkeypatch):
    def load(path, mode):
        raise OSError("libcudart.so.99: not found")

    monkeypatch.setattr(ctypes, "CDLL", load)
    installed({LIBRARY: ""}, found=False)
    with pytest.raises(DeviceUnavailable, match=r"NCCL cannot be used \(OSError: libcudart.so.99: not found\): pip install"):
        load_nccl()


@pytest.mark.parametrize("changes", [{}, {"nvidia/nccl/__init__.py": ""}], ids=["no package", "a package without it"])
def test_where_there_is_none_one_line_tells_what_to_install(installed, opened, changes):
    installed(changes, found=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DeviceUnavailable) as refused:
            load_nccl()
    assert str(refused.value) == (
        f"NCCL cannot be used (ImportError: libnccl.so.2: cannot open shared object file): {install('nccl13')} (or nccl12)"
    )
    assert opened == []


def test_without_cupys_module_nothing_is_loaded(installed, opened):
    installed({"cupy/cuda/nccl.py": None, LIBRARY: ""}, found=False)
    with pytest.raises(DeviceUnavailable, match=r"No module named 'cupy.cuda.nccl'"):
        load_nccl()
    assert opened == []


class Failing(RuntimeError):
    """As CuPy's NcclError."""


class DeviceGroup:
    """As CuPy's NcclCommunicator."""

    def __init__(self, size, unique_id, rank):
        self.calls = [(size, unique_id, rank)]

    def __getattr__(self, name):
        return lambda *these: self.calls.append((name, *these))


class Module:
    """As CuPy's module."""

    NcclError, NcclCommunicator, NCCL_UINT8 = Failing, DeviceGroup, 1

    def __init__(self):
        self.groups = []

    def groupStart(self):
        self.groups.append("start")

    def groupEnd(self):
        self.groups.append("end")


@pytest.fixture
def module(monkeypatch):
    made = Module()
    monkeypatch.setattr(nccl, "load_nccl", lambda: made)
    return made


def test_every_rank_that_has_rows_brings_them_whole_in_one_group(module):
    joined = nccl.NcclCommunicator(b"id", 2, 3)
    joined.allgather_rows(1000, 16, [Span(0, 3), Span(3, 3), Span(3, 5)], 7)
    assert module.groups == ["start", "end"]
    assert joined._communicator.calls == [(3, b"id", 2), ("bcast", 1000, 48, 1, 0, 7), ("bcast", 1048, 32, 1, 2, 7)]


def test_bytes_are_sent_and_received_by_rank_and_stream(module):
    joined = nccl.NcclCommunicator(b"id", 0, 2)
    joined.send(1000, 24, 1, 7)
    joined.receive(2000, 48, 1, 8)
    assert joined._communicator.calls[1:] == [("send", 1000, 24, 1, 1, 7), ("recv", 2000, 48, 1, 1, 8)]


@pytest.mark.parametrize("how", ["send", "recv"])
def test_a_failure_of_ncclsend_and_ncclrecv_is_told_in_a_line(module, monkeypatch, how):
    joined = nccl.NcclCommunicator(b"id", 0, 2)

    def refuse(*these):
        raise Failing("NCCL_ERROR_SYSTEM_ERROR:\n  no")

    monkeypatch.setattr(joined._communicator, how, refuse, raising=False)
    with pytest.raises(DeviceUnavailable, match=r"^NCCL failed \(Failing: NCCL_ERROR_SYSTEM_ERROR: no\)"):
        (joined.send if how == "send" else joined.receive)(0, 8, 1, 0)


def test_a_group_is_ended_also_where_it_fails(module, monkeypatch):
    joined = nccl.NcclCommunicator(b"id", 0, 1)

    def refuse(*these):
        raise Failing("NCCL_ERROR_INVALID_ARGUMENT:\n  no")

    monkeypatch.setattr(joined._communicator, "bcast", refuse, raising=False)
    with pytest.raises(DeviceUnavailable, match=r"^NCCL failed \(Failing: NCCL_ERROR_INVALID_ARGUMENT: no\); NCCL_DEBUG"):
        joined.allgather_rows(0, 8, [Span(0, 1)], 0)
    assert module.groups == ["start", "end"]


@pytest.mark.parametrize("how", ["destroy", "abort"])
def test_it_is_given_back_once(module, how):
    joined = nccl.NcclCommunicator(b"id", 0, 1)
    calls = joined._communicator.calls
    getattr(joined, how)()
    del joined
    assert calls[1:] == [(how,)]


def test_what_nobody_refers_to_is_aborted(module):
    joined = nccl.NcclCommunicator(b"id", 0, 1)
    calls = joined._communicator.calls
    del joined
    assert calls[1:] == [("abort",)]
