# SPDX-License-Identifier: MIT
"""How to complete an installation, and what is said where D-Wave's package of the same name is installed, too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata

import pytest
from support.commands import ROOT

import hybrid
from hybrid.core import installation
from hybrid.core.installation import install
from hybrid.diagnostics import package

SAID = "dwave-hybrid 0.6.16 is installed here, too, also as the package hybrid: each needs an environment of its own"
THEIRS = {
    "__init__.py": "from hybrid.core import *\nfrom hybrid.decomposers import *\n",
    "decomposers.py": "from hybrid.core import Runnable\n",
    "flow.py": "",
}


def test_a_checkout_is_installed_from_where_it_lies():
    assert install("graphs") == f"pip install -e '{ROOT}[graphs]'"


def test_without_a_checkout_the_packages_themselves_are_named(tmp_path, monkeypatch):
    """No text says to install hybrid-runner by its name: no package index has it."""
    wanted = ["numpy<3,>=2.0", "scipy<2,>=1.13; extra == 'graphs'", 'cupy<15; extra == "cuda13"', 'x[a]==13.*; extra == "cuda13"']
    wanted.append('zarr<4,>=3.1; python_version >= "3.11" and extra == "zarr"')
    monkeypatch.setattr(installation, "_PACKAGE", tmp_path / "hybrid")
    monkeypatch.setattr(metadata, "requires", {"hybrid-runner": wanted}.get)
    assert install("zarr") == "pip install 'zarr<4,>=3.1'"
    assert install("graphs") == "pip install 'scipy<2,>=1.13'"
    assert install("cuda13") == "pip install 'cupy<15' 'x[a]==13.*'"
    assert install("none") == "pip install what the extra none of setup.cfg names"


def test_no_text_says_to_install_it_from_an_index():
    texts = [path for top in ("hybrid", "scripts", "docs", "kernels", "slurm") for path in (ROOT / top).rglob("*")]
    texts += list(ROOT.glob("*.md"))
    read = {path: path.read_text("utf-8") for path in texts if path.suffix in (".py", ".md", ".sh")}
    assert [path for path, text in read.items() if "install hybrid-runner" in text or "hybrid-runner[" in text] == []


def test_alone_a_missing_name_is_an_ordinary_error():
    with pytest.raises(AttributeError, match=r"^module 'hybrid' has no attribute 'State'$"):
        _ = hybrid.State
    with pytest.raises(AttributeError, match=r"^module 'hybrid\.core' has no attribute 'Runnable'$"):
        _ = hybrid.core.Runnable
    assert package.judge([package.inspect(), None]) == []


@pytest.fixture
def both(tmp_path):
    """A folder of packages in which both are installed, ours last; and a way to start Python with it."""
    site = tmp_path / "site"
    shutil.copytree(ROOT / "hybrid", site / "hybrid", ignore=shutil.ignore_patterns("__pycache__"))
    for name, content in THEIRS.items():
        if name != "__init__.py":
            (site / "hybrid" / name).write_text(content)
    information = site / "dwave_hybrid-0.6.16.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: dwave-hybrid\nVersion: 0.6.16\n")

    def python(*words):
        environment = {**os.environ, "PYTHONPATH": str(site)}
        return subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment, check=False
        )

    return site, python


def test_what_another_package_s_users_import_says_why_it_fails(both):
    _, python = both
    assert python("-c", "import hybrid; hybrid.multiply; import hybrid.core.text").returncode == 0
    for statement, lacks in (
        ("from hybrid import State", "hybrid of hybrid-runner has no State"),
        ("import hybrid.decomposers", "hybrid.core of hybrid-runner has no Runnable"),
    ):
        assert python("-c", statement).stderr.splitlines()[-1] == f"ImportError: {lacks}: {SAID}"
    assert python("-c", "import hybrid; print(hasattr(hybrid, '__wrapped__'))").stdout == "False\n"


def test_where_theirs_was_installed_last_our_commands_say_so(both):
    site, python = both
    (site / "hybrid" / "__init__.py").write_text(THEIRS["__init__.py"])
    done = python("-m", "hybrid.matmul", "8", "8", "8")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(f"ImportError: hybrid.core of hybrid-runner has no Runnable: {SAID}")


def test_the_doctor_says_so(both):
    _, python = both
    done = python("-m", "hybrid.doctor", "--threads", "1")
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if " package " in line]
    assert line.startswith("WRONG ")
    assert f"{SAID}: both have written to the same folder → pip uninstall dwave-hybrid hybrid-runner, then" in line


def test_in_another_folder_it_is_only_noted():
    (finding,) = package.judge([("dwave-hybrid 1 is here, too", False), None])
    assert (finding.verdict, finding.text) == (
        "note",
        "dwave-hybrid 1 is here, too; here hybrid-runner's is found first",
    )
