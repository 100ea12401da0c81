# SPDX-License-Identifier: MIT
"""What all commands have in common: a list of them, and a version."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys

import pytest
from support.commands import ROOT, module

import hybrid
from hybrid.__main__ import COMMANDS
from hybrid.core.settings import Settings
from hybrid.host.threads import Threads
from hybrid.ranks.team import Team
from hybrid.selection import inventory


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


@pytest.mark.parametrize("name", ["matmul", "hello", "accept", "paths"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_gpus_driver_is_woken_when_the_threads_are_in_the_environment(monkeypatch, name, device):
    """It reads the environment, and may die of a change meanwhile."""
    done = []

    def settle_threads(team, settings):
        done.append("settled")
        return [Threads(1, "planted")]

    def wake_driver(local_rank):
        raise InterruptedError

    monkeypatch.setattr(inventory, "settle_threads", settle_threads)
    monkeypatch.setattr(inventory, "wake_driver", wake_driver)
    team, command = Team(), importlib.import_module(f"hybrid.commands.{name}")
    wake = inventory.wake_gpus

    def wake_and_end(settings):
        wake(settings)
        raise TimeoutError

    monkeypatch.setattr(inventory, "wake_gpus", wake_and_end)
    with pytest.raises(InterruptedError if device == "cuda" else TimeoutError):
        command.work(team, argparse.Namespace(), Settings(device=device))
    assert done == ["settled"]


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_who_asks_for_help_gets_the_list(words):
    assert said("-m", "hybrid", *words) == said("-m", "hybrid")


def test_a_command_may_be_a_word_of_its_own():
    assert said("-m", "hybrid", "--version") == f"hybrid-runner {hybrid.__version__}\n"
    assert said("-m", "hybrid", "paths", "ten", "--version") == f"hybrid-runner {hybrid.__version__}\n"
    assert said("-m", "hybrid", "matmul", "--kernel", "list") == said("-m", "hybrid.matmul", "--kernel", "list")


@pytest.mark.parametrize(("word", "suggestion"), [
    ("matmull", "did you mean 'matmul'?"), ("--quiet", "one of matmul, hello, doctor,"), ("zzz", "one of matmul, hello, doctor,"),
])  # fmt: skip
def test_what_is_no_command_is_refused(word, suggestion):
    done = subprocess.run([*module("hybrid"), word], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"hybrid: unknown command '{word}': {suggestion}")


def test_every_command_is_listed():
    entries = {path.stem for path in (ROOT / "hybrid").glob("*.py") if "Entry of `python -m" in path.read_text()}
    assert entries == set(COMMANDS)
    assert all(callable(importlib.import_module(f"hybrid.{name}").main) for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_its_version(name):
    assert said("-m", f"hybrid.{name}", "--version") == f"hybrid-runner {hybrid.__version__}\n"


@pytest.mark.parametrize("words", [
    "matmul 8 8 8 --out", "matmul 8 8 8 --json", "matmul 8 8 8 --trace", "matmul --b", "accept --html", "accept --json",
    "doctor --json", "lab run", "lab check tiles", "lab run x.cu --json", "paths ten --length 4 --out", "paths --length 4",
])  # fmt: skip
def test_an_empty_name_of_a_file_is_refused(words):
    name, *options = words.split()
    done = subprocess.run([*module(f"hybrid.{name}"), *options, ""], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(": the name of a file is missing\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("words", "said"), [
    ("strat tiles", "argument COMMAND: unknown choice 'strat': did you mean 'start'?"),
    ("dance", "argument COMMAND: unknown choice 'dance': one of run, exercises, start, check, grade, "),
    ("run x.cu --sise 3", "unknown option --sise: did you mean --sizes?"),
])  # fmt: skip
def test_what_is_no_command_or_option_of_a_command_s_own_commands(words, said):
    done = subprocess.run([*module("hybrid.lab"), *words.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"hybrid.lab: {said}")
    assert done.stderr.count("\n") == 1


@pytest.mark.launcher
def test_of_several_ranks_one_tells_it():
    from hybrid.ranks.launcher import mpirun

    done = subprocess.run([*mpirun(2), *module("hybrid.matmul"), "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"hybrid-runner {hybrid.__version__}\n"


def test_the_module_shows_its_public_names_only():
    assert dir(hybrid) == sorted(hybrid.__all__)
