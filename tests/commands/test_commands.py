# SPDX-License-Identifier: MIT
"""What all commands have in common: a list of them, and a version."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from support.commands import ROOT, module

import hybrid
from hybrid.__main__ import COMMANDS


def said(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_the_package_lists_its_commands():
    text = said("-m", "hybrid")
    assert f"hybrid-runner {hybrid.__version__}" in text
    for name, summary in COMMANDS.items():
        assert f"hybrid.{name} " in text
        assert summary in text


def test_every_command_is_listed():
    entries = {path.stem for path in (ROOT / "hybrid").glob("*.py") if "Entry of `python -m" in path.read_text()}
    assert entries == set(COMMANDS)
    assert all(callable(importlib.import_module(f"hybrid.{name}").main) for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_its_version(name):
    assert said("-m", f"hybrid.{name}", "--version") == f"hybrid-runner {hybrid.__version__}\n"


@pytest.mark.launcher
def test_of_several_ranks_one_tells_it():
    from hybrid.ranks.launcher import mpirun

    done = subprocess.run([*mpirun(2), *module("hybrid.matmul"), "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"hybrid-runner {hybrid.__version__}\n"


def test_the_module_shows_its_public_names_only():
    assert dir(hybrid) == sorted(hybrid.__all__)
