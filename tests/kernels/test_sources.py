# SPDX-License-Identifier: MIT
"""The CUDA sources are found in a checkout, and in an archive that carries no symbolic links."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest
from support.commands import ROOT

from hybrid.kernels.catalogue import CATALOGUE
from hybrid.kernels.sources import KERNELS


def test_every_kernel_has_its_source():
    assert {kernel.source for kernel in CATALOGUE if kernel.source} <= {path.name for path in KERNELS.glob("*.cu")}


@pytest.mark.needs("git", "compiler")
def test_an_archive_without_links_runs(tmp_path):
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert not [line for line in listed.splitlines() if line.startswith("120000")], "zip files carry no symbolic links"
    archive = tmp_path / "archive.zip"
    subprocess.run(["git", "archive", "--format=zip", f"--output={archive}", "HEAD"], cwd=ROOT, check=True)
    checkout = tmp_path / "checkout"
    zipfile.ZipFile(archive).extractall(checkout)
    command = [sys.executable, "-m", "hybrid.matmul", "30", "20", "10", "--device", "emulate", "--kernel", "tiled"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert "check ok" in done.stdout, done.stderr
