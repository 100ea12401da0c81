# SPDX-License-Identifier: MIT
"""What is kept of kernels that are compiled for one architecture alone."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from hybrid.core.private_folder import Elsewhere
from hybrid.devices.cubins import kept

NAMES, CUBIN = {"products": "_Z8products"}, b"\x7fELF\n\n machine code"


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """How often `kept` has compiled, as `compiled.times`, and the file in which it keeps what it has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    class Compiled:
        times = 0

        def __call__(self):
            self.times += 1
            return NAMES, CUBIN

        @property
        def file(self) -> Path:
            (file,) = tmp_path.rglob("products-1.cubin")
            return file

    return Compiled()


def test_what_was_compiled_once_is_kept(compiled):
    for _ in range(3):
        assert kept("products-1", compiled) == (NAMES, CUBIN)
    assert compiled.times == 1
    kept("products-2", compiled)
    assert compiled.times == 2


@pytest.mark.parametrize(
    "damaged",
    [
        lambda content: content[:-1],
        lambda content: content[:-1] + b"?",
        lambda content: content.replace(b"sha256", b"sha257"),
        lambda content: b"",
        lambda content: b"\xff\n" + CUBIN,
        lambda content: b"[]\n" + CUBIN,
    ],
)
def test_a_damaged_file_is_compiled_again(compiled, damaged):
    kept("products-1", compiled)
    compiled.file.write_bytes(damaged(compiled.file.read_bytes()))
    assert kept("products-1", compiled) == (NAMES, CUBIN)
    assert compiled.times == 2
    assert kept("products-1", compiled) == (NAMES, CUBIN)
    assert compiled.times == 2


def test_a_full_disk_is_said_and_does_no_harm(compiled, monkeypatch):
    def full(self, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(Elsewhere, match=r"compiled again by the next process: .*products-1.cubin cannot be written: No space"):
        assert kept("products-1", compiled) == (NAMES, CUBIN)
