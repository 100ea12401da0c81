# SPDX-License-Identifier: MIT
"""What is packed: all modules and what they read; and the same bytes every time."""

import gzip
import importlib.util
import io
import os
import re
import tarfile
import time
import zipfile
from configparser import ConfigParser
from fnmatch import fnmatch

import pytest
from support.commands import ROOT

MARKS = re.compile("TOD[O]|FIXM[E]")  # in brackets, so that a search for the marks does not find this line
SETUP = ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")
PACKAGES = SETUP["options"]["packages"].split()
FOLDERS = {
    "hybrid.kernels.cuda": "kernels", "hybrid.classroom.course": "docs/course", "hybrid.classroom.examples": "docs/examples",
    "hybrid.classroom.programs": "docs/programs", "hybrid.scripts": "scripts",
}  # fmt: skip


def folder_of(package):
    for name, folder in FOLDERS.items():
        if package == name or package.startswith(f"{name}."):
            return ROOT / folder / package.removeprefix(name).strip(".").replace(".", "/")
    return ROOT / package.replace(".", "/")


def test_the_folders_of_packages_are_setup_s():
    lines = [line.partition(" = ")[::2] for line in SETUP["options"]["package_dir"].strip().splitlines()]
    assert dict(lines) == {"hybrid": "hybrid", **FOLDERS}


def test_every_module_is_packed():
    """Of scripts/ what `hybrid.lectures` starts: test_command.py starts all of it from there alone."""
    modules, packed = {path.parent for path in (ROOT / "hybrid").rglob("*.py")}, {folder_of(package) for package in PACKAGES}
    assert modules - packed == {ROOT / "hybrid/classroom/exercises"}
    of_scripts = {path.relative_to(ROOT / "scripts").as_posix() for path in packed if path.is_relative_to(ROOT / "scripts")}
    assert of_scripts == {"experiments", "experiments/common", "experiments/lectures"}
    assert "exercises/*.py" in SETUP["options.package_data"]["hybrid.classroom"]  # no modules: files to begin with


def test_whatever_modules_read_is_packed():
    data = SETUP["options.package_data"]
    folders = {package: folder_of(package).relative_to(ROOT).as_posix() for package in data}
    patterns = [f"{folders[package]}/{text.strip()}" for package in data for text in data[package].split(",")]
    tops = [
        ROOT / top
        for top in ("hybrid", "scripts/experiments/lectures", "kernels", "docs/course", "docs/examples", "docs/programs")
    ]
    files = [path for top in tops for path in top.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    names = [path.relative_to(ROOT).as_posix() for path in files]
    assert len(names) > 40
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_metadata_has_no_placeholder_and_no_address_that_does_not_exist():
    text = (ROOT / "setup.cfg").read_text(encoding="utf-8") + (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"example\.(?:com|org)|your[-_ ]name|https?://\S*", text) + MARKS.findall(text) == []


@pytest.fixture(scope="module")
def backend():
    pytest.importorskip("setuptools.build_meta")
    spec = importlib.util.spec_from_file_location("build_backend", ROOT / ".ci" / "build_backend.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONTENT = {"p/b.py": b"print()\n", "p/a.sh": b"exit\n"}


def source_archive(folder, umask, names):
    """As a machine makes it at some moment."""
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(CONTENT[name])
        (folder / name).chmod((0o777 if name.endswith(".sh") else 0o666) & ~umask)
        os.utime(folder / name, (time.time(), 1e9 + umask))
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w:gz") as archive:
        for name in names:
            archive.add(folder / name, name)
    return result.getvalue()


def test_a_source_archive_is_the_same_whoever_makes_it_when(backend, tmp_path):
    mine = source_archive(tmp_path / "mine", 0o022, list(CONTENT))
    theirs = source_archive(tmp_path / "theirs", 0o077, list(reversed(CONTENT)))
    assert mine != theirs
    made = backend.normalized(mine, 1_700_000_000)
    assert made == backend.normalized(theirs, 1_700_000_000)
    assert made != backend.normalized(mine, 1_700_000_001)
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        assert {name: archive.extractfile(name).read() for name in archive.getnames()} == CONTENT
        modes = [("p/a.sh", 0o755, 1_700_000_000), ("p/b.py", 0o644, 1_700_000_000)]
        assert [(each.name, each.mode, each.mtime) for each in archive] == modes
    assert gzip.decompress(made)


def test_a_wheel_has_the_same_permissions_whatever_the_umask(backend):
    def wheel(mode):
        result = io.BytesIO()
        with zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in CONTENT.items():
                member = zipfile.ZipInfo(name, (2023, 11, 14, 22, 13, 20))
                member.external_attr = mode << 16
                archive.writestr(member, content)
        return result.getvalue()

    made = backend.readable_by_all(wheel(0o100600))
    assert made == backend.readable_by_all(wheel(0o100644))
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == CONTENT
        assert {member.date_time for member in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}
