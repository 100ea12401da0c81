# SPDX-License-Identifier: MIT
"""Where CuPy keeps compiled kernels: in a folder that this user alone may write to, or in memory only."""

from __future__ import annotations

import os
import sys
import warnings
from functools import cache
from pathlib import Path

from hybrid.core.private_folder import (
    Elsewhere,
    NotPrivate,
    cache_folder,
    home_folder,
    is_own,
    named_cache,
    reason,
    refuse_unless_private,
)

_ROOM = 1 << 20  # bytes; a compiled kernel takes less


@cache
def trust_own_cache_only() -> None:
    """Have CuPy load compiled kernels only from a folder to which nobody else can have written. To be called before CuPy is
    imported.

    That is the folder that the user named, or CuPy's own, if it is private, else one of ours. CuPy looks for its folder when it
    is imported. So where the user's program has imported it already and its folder is not private, kernels are kept in memory.
    """
    if os.environ.get("CUPY_CACHE_IN_MEMORY") == "1":
        if not os.path.isdir(os.environ.get("CUPY_CACHE_DIR", "")):
            os.environ["CUPY_CACHE_DIR"] = os.sep  # which CuPy does not use, but would make
        return
    try:
        os.environ["CUPY_CACHE_DIR"] = str(_usual_folder())
    except OSError as error:
        try:
            if "cupy" in sys.modules:
                raise
            folder = _usable(cache_folder("cupy"))
        except OSError:
            os.environ.update(CUPY_CACHE_IN_MEMORY="1", CUPY_CACHE_DIR=os.sep)
            where = "compiled anew"
        else:
            os.environ["CUPY_CACHE_DIR"] = str(folder)
            where = f"kept in {folder}"
        warnings.warn(f"GPU kernels are {where}: {reason(error)}; CUPY_CACHE_DIR names a better place", Elsewhere, stacklevel=2)


def _usual_folder() -> Path:
    """The folder that CuPy would use, made where it is missing. OSError where it is not to be used."""
    if not os.environ.get("CUPY_CACHE_DIR") and named_cache():
        return _usable(cache_folder("cupy"))
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or home_folder() / ".cupy/kernel_cache")
    if not folder.is_absolute():
        raise NotPrivate(0, f"{folder} depends on the current folder")
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # by now another rank may have made it
    return _usable(folder.resolve())


def _usable(folder: Path) -> Path:
    """This folder. OSError where others could have put a kernel there, or where none can be written."""
    refuse_unless_private(folder)
    for path in folder.iterdir():
        if path.suffix in (".cubin", ".ltoir") and not is_own(path):
            raise NotPrivate(0, f"{path} is not your file alone")
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(_ROOM))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None
    return folder
