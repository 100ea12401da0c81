# SPDX-License-Identifier: MIT
"""The disk cache of compiled files. A file's name contains a hash of everything that it depends on."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path

from hybrid.core import installation
from hybrid.emulation.errors import EmulationError
from hybrid.errors import DeviceUnavailable, one_line

_BUILDING = ".building-"  # prefix of the folders of running compilations
_ABANDONED = 3600.0  # seconds after which such a folder is a dead process's
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # a full disk, a full quota
_SEALED, _SEAL_BYTES = (".so", ".o"), 32  # a hash is appended to these; loaders and linkers ignore it
_locks: dict[Path, threading.Lock] = {}


def cached(name: str, compile_in: Callable[[Path, Path], Path]) -> Path:
    """The cached file `name`. If it is missing, `compile_in(folder, log)` makes it in a temporary folder.

    On a full disk or quota the file goes among the temporary files instead. DeviceUnavailable if that fails, too.
    """
    folder = cache_folder()
    try:
        return _kept(folder / name, compile_in)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise _unusable(str(folder), error) from None
        full = OSError(error.errno, error.strerror, str(folder))
    where = str(folder)
    try:
        other = installation.temporary_folder("emulation")
        where = f"{folder}, nor in {other}" if other != folder else where
        kept = _kept(other / name, compile_in)
    except OSError as error:
        raise _unusable(where, error) from None
    installation.say_elsewhere(other, full)
    return kept


def _kept(path: Path, compile_in: Callable[[Path, Path], Path]) -> Path:
    """The file at `path`, compiled if it is missing or truncated, or if another user could have put it there.

    Several processes may compile the same file, so it is moved there atomically; of this process's threads only one does.
    """
    with _locks.setdefault(path, threading.Lock()):
        if installation.is_own(path) and _is_whole(path):
            return path
        for abandoned in path.parent.glob(f"{_BUILDING}*"):
            with suppress(OSError):  # another process removes it as well
                if time.time() - abandoned.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(abandoned)
        folder = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=path.parent))  # forked children would remove a TemporaryDirectory
        try:
            file = compile_in(folder, path.with_suffix(".log"))
            if not file.exists():
                raise DeviceUnavailable(
                    f"no {path.name} was written, and no error told, by the compiler: is CXX, or CC, set to one?",
                    code="compile-failed",
                )
            if path.suffix in _SEALED:
                with file.open("ab") as appended:
                    appended.write(_seal(file.read_bytes()))
            file.chmod(0o700)
            os.replace(file, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return path


def _is_whole(path: Path) -> bool:
    """Whether the file is complete: a truncated library would end the process by SIGBUS."""
    if path.suffix not in _SEALED:
        return True
    content = path.read_bytes()
    return content[-_SEAL_BYTES:] == _seal(content[:-_SEAL_BYTES])


def _seal(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SEAL_BYTES).digest()


def cache_folder() -> Path:
    """The private folder of compiled libraries, created if needed. DeviceUnavailable if that fails."""
    try:
        return installation.cache_folder("emulation")
    except OSError as error:
        raise _unusable("the cache, nor in the folder for temporary files", error) from None


def _unusable(where: str, error: OSError) -> DeviceUnavailable:
    why = error.strerror or one_line(error)
    room = "make room there, or " if error.errno in NO_ROOM else ""
    return DeviceUnavailable(f"compiled kernels cannot be kept in {where} ({why}): {room}set HYBRID_CACHE", code="kernel-cache")


def cache_key(program: str, *parts: object) -> str:
    """A hash of texts, files' contents, the compiler and the CPU: of all that a library depends on."""
    digest = hashlib.sha256()
    for part in (*_compiler_and_cpu(program), *parts):
        content = part.name.encode() + part.read_bytes() if isinstance(part, Path) else repr(part).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()[:20]


@cache
def _compiler_and_cpu(program: str) -> tuple[str, str]:
    """The compiler's version; and this CPU's model and features, on which -march=native depends."""
    try:
        version = subprocess.run([program, "--version"], capture_output=True, text=True, errors="replace").stdout  # noqa: S603
    except OSError as error:
        raise EmulationError("build", f"the compiler {program} cannot be run: {one_line(error)}") from None
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = [*takewhile(str.strip, file)]  # the first core; the others are alike
    except OSError:
        return version, platform.processor()
    return version, "".join(line for line in first if line.startswith(("model name", "flags", "Features", "CPU part")))
