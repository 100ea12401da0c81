# SPDX-License-Identifier: MIT
"""setuptools' build backend, with archives that can be made again, byte for byte, where SOURCE_DATE_EPOCH is set; and with GPU
kernels as machine code in the wheel, where `-C cubins=on` asks for them (`python -m build -C cubins=on`).

setuptools writes the times, users and permissions of the day and the machine into a source archive, and the permissions into a
wheel. Here they are replaced: the time is SOURCE_DATE_EPOCH, the user nobody in particular, and everybody may read.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 (all the other functions that a frontend may call)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """The name of the source archive, made in this folder."""
    name = build_meta.build_sdist(sdist_directory, config_settings)
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        path = Path(sdist_directory) / name
        path.write_bytes(normalized(path.read_bytes(), int(epoch)))
    return name


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What building a wheel needs: to compile kernels, this package's own dependencies and NVRTC. The machine code that CUDA 12
    makes runs with drivers of CUDA 12 and 13."""
    needed: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    if _has_cubins(config_settings):
        setup = ConfigParser(comment_prefixes="#")
        setup.read("setup.cfg")
        listed = setup["options"]["install_requires"] + setup["options.extras_require"]["nvrtc12"]
        needed += [line for line in listed.splitlines() if line]
    return needed


def _has_cubins(config_settings: Any) -> bool:
    return (config_settings or {}).get("cubins", "off") != "off"


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """The name of the wheel, made in this folder."""
    if _has_cubins(config_settings):
        subprocess.run([sys.executable, "scripts/compile_kernels.py", "--ship"], check=True)
    name = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    if os.environ.get("SOURCE_DATE_EPOCH"):
        path = Path(wheel_directory) / name
        path.write_bytes(readable_by_all(path.read_bytes()))
    return name


def readable_by_all(wheel: bytes) -> bytes:
    """The same wheel, its times included, with the usual permissions."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(wheel)) as old, zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            content = old.read(member)
            member.external_attr = (stat.S_IFREG | 0o644) << 16
            new.writestr(member, content)
    return result.getvalue()


def normalized(archive: bytes, epoch: int) -> bytes:
    """A .tar.gz with the same files, in the order of their names, of this time."""
    tar = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as old,
        tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return gzip.compress(tar.getvalue(), mtime=epoch)
