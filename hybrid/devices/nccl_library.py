"""NCCL, which joins GPUs of one machine and of several: CuPy's module for it, and the library that this needs."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from hybrid.errors import DeviceUnavailable, one_line

_LIBRARY = "libnccl.so.2"
_CUPYS_OWN = "cupy_backends.cuda.libs.nccl"


@cache
def load_nccl() -> Any:
    """CuPy's module, ready for use. DeviceUnavailable, with what to do, where it or the library cannot be loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns in several lines of a library it does not find; it is told below
        try:
            module = importlib.import_module("cupy.cuda.nccl")
        except ImportError as error:
            raise _unavailable(one_line(error)) from None
    if module.available:
        return module
    # CuPy looks only once, and does not look everywhere that pip installs to. What failed to import is imported anew.
    for path in _installed_by_pip():
        try:
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise _unavailable(one_line(error)) from None
    try:
        return importlib.import_module(_CUPYS_OWN)
    except ImportError as error:
        raise _unavailable(one_line(error)) from None


def _installed_by_pip() -> list[Path]:
    """The library of the packages nvidia-nccl-cu12 and -cu13, which both install to the same place."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        return []
    folders = list(found.submodule_search_locations or []) if found else []
    paths = [Path(folder) / "lib" / _LIBRARY for folder in folders]
    return [path for path in paths if path.is_file()]


def _unavailable(reason: str) -> DeviceUnavailable:
    return DeviceUnavailable(f"NCCL cannot be used ({reason}): pip install 'hybrid-runner[nccl13]' (or nccl12)")
