"""What README shows works as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from support.commands import ROOT

from hybrid.commands.matmul_options import build_parser
from hybrid.core.settings import Settings
from hybrid.ranks.launcher import mpirun

README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands():
    """The commands that can be run anywhere: those that set up an environment are run by scripts/test.sh and CI."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if "-m hybrid." in line]


def as_here(line):
    """The command with this environment's python and mpirun."""
    words = shlex.split(line)
    if words[:2] == ["mpirun", "-n"]:
        return [*mpirun(int(words[2])), sys.executable, *words[4:]]
    return [sys.executable, *words[1:]]


def with_needs(line):
    """The command as a parameter, marked with what it needs."""
    needs = {"compiler": "--device emulate" in line or "-m hybrid.hello" in line, "c compiler": "--kernel loops" in line}
    return pytest.param(line, marks=pytest.mark.needs(*(thing for thing, needed in needs.items() if needed)))


@pytest.mark.launcher
@pytest.mark.parametrize("line", list(map(with_needs, commands())))
def test_commands(line, tmp_path):
    done = subprocess.run(as_here(line), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_there_are_commands_and_programs():
    assert len(commands()) >= 3
    assert len(blocks("python")) == len(RIGHT)


RIGHT = {
    "alone": "numpy.allclose(c, a @ b)",
    "with mpi4py": "c is None or numpy.allclose(c, a @ b)",
    "shared": "(c == 800).all()",
    "row-blocks": "numpy.allclose(power.array, 0.01 * comm.size**3)",
}


@pytest.mark.launcher
@pytest.mark.parametrize(("program", "right"), list(zip(blocks("python"), RIGHT.values(), strict=True)), ids=RIGHT)
def test_programs(program, right, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(f"{program}\nassert {right}\n")
    ranks = mpirun(2) if "mpi4py" in program else []
    done = subprocess.run([*ranks, sys.executable, path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_every_option_and_setting_is_named():
    options = {option for action in build_parser()._actions for option in action.option_strings if option.startswith("--")}
    missing = {option for option in options - {"--help"} if option not in README}
    missing |= {f"HYBRID_{name.upper()}" for name in Settings().as_dict() if f"HYBRID_{name.upper()}" not in README}
    assert not missing


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
