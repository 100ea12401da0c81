# SPDX-License-Identifier: MIT
"""CuPy's cache of compiled kernels is read only where nobody else can have written to it."""

from __future__ import annotations

import os

import pytest

from hybrid.core.private_folder import Elsewhere
from hybrid.devices.cuda_kernels import trust_own_cache_only


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "0")
    trust_own_cache_only.cache_clear()
    yield tmp_path / "kernels"
    trust_own_cache_only.cache_clear()


def test_a_new_one_is_private(folder):
    trust_own_cache_only()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert os.environ["CUPY_CACHE_IN_MEMORY"] == "0"


def test_one_that_others_could_write_to_keeps_the_users_kernels_only(folder):
    folder.mkdir()
    (folder / "mine.cubin").write_text("")
    (folder / "open.cubin").write_text("")
    (folder / "open.cubin").chmod(0o666)
    folder.chmod(0o777)
    trust_own_cache_only()
    assert [path.name for path in folder.iterdir()] == ["mine.cubin"]
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.needs("root")
def test_one_of_another_user_is_not_read(folder):
    folder.mkdir()
    os.chown(folder, 12345, -1)
    with pytest.warns(Elsewhere, match="belongs to another user; CUPY_CACHE_DIR names a better place"):
        trust_own_cache_only()
    assert os.environ["CUPY_CACHE_IN_MEMORY"] == "1"
