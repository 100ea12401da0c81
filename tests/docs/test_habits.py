# SPDX-License-Identifier: MIT
"""What stands in several files of the project says the same in all of them."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import hybrid

ROOT = Path(__file__).resolve().parents[2]
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
OF_SEVERAL_MAJORS = {"cuda-toolkit", "cuda-bindings"}  # 12 and 13 under one name: no line can hold both


def test_pre_commit_takes_the_versions_of_the_constraints():
    pinned = re.findall(r"[\w-]+==[\w.]+", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert pinned
    assert [pin for pin in pinned if pin not in PINS] == []


def test_every_package_that_an_extra_installs_has_a_tested_version():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    wanted = "\n".join([setup["options"]["install_requires"], *setup["options.extras_require"].values()])
    names = {re.split(r"[\[<>=]", line)[0] for line in wanted.splitlines() if line}
    assert names - {pin.partition("==")[0] for pin in PINS} == OF_SEVERAL_MAJORS


def test_the_citation_has_the_version():
    assert f"\nversion: {hybrid.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
