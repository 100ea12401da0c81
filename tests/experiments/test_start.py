# SPDX-License-Identifier: MIT
"""The public scripts start from a checkout, wherever they are called, and say in one line what is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.start import ROOT, SCRIPTS

PUBLIC = sorted(path.name for path in SCRIPTS.glob("*.py"))


def run(cwd, *words):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60, cwd=cwd, check=False)


def test_every_entry_is_a_few_lines():
    assert "bench_hosts.py" in PUBLIC
    assert all(len((SCRIPTS / name).read_text().splitlines()) <= 6 for name in PUBLIC)


def test_the_checkout_s_own_package_is_used(tmp_path):
    code = "from experiments.start import use_checkout; use_checkout(); import hybrid; print(hybrid.__file__)"
    done = run(tmp_path, "-c", f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); {code}")
    assert done.stdout.strip() == str(ROOT / "hybrid" / "__init__.py"), done.stderr


def test_a_checkout_may_have_the_package_s_name(tmp_path):
    copied = Path("scripts", "experiments", "start.py")
    for checkout in ("hybrid", "runner"):
        (tmp_path / checkout / copied.parent).mkdir(parents=True)
        shutil.copy(ROOT / copied, tmp_path / checkout / copied)
        done = run(tmp_path, "-c", f"import runpy; print(runpy.run_path({str(Path(checkout, copied))!r})['ROOT'])")
        assert done.stdout.strip() == str(tmp_path / checkout), done.stderr


@pytest.mark.parametrize("name", PUBLIC)
def test_without_what_it_needs_it_says_how_to_install(name, tmp_path):
    done = run(tmp_path, "-S", SCRIPTS / name, "--help")
    assert done.returncode == 1
    assert done.stderr.endswith(f" is not installed: pip install -e {ROOT}\n"), done.stderr
    assert done.stderr.count("\n") == 1
