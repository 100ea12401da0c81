# SPDX-License-Identifier: MIT
"""python -m hybrid.lectures: what docs/ shows as scripts/, from any folder, as a checkout and as an installed package have it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, module, start, successful

from hybrid.commands.lectures import SCRIPTS, parse
from hybrid.errors import UsageError

EXAMPLES = ROOT / "docs" / "examples"
LECTURES = module("hybrid.lectures")


def test_the_list_names_every_lecture_and_program():
    listed = successful(start(LECTURES)).stdout
    assert all(f"  {name:<14}{summary}\n" in listed for name, (_, summary) in SCRIPTS.items())
    assert re.findall(r"^  (\w+\.cu) +\w", listed, re.MULTILINE) == sorted(path.name for path in EXAMPLES.glob("*.cu"))


def test_every_lecture_is_a_script_of_the_checkout():
    entries = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "scripts").glob("*.py")}
    modules = {re.search(r'run\("(.+)"\)', text)[1]: name for name, text in entries.items()}
    assert [modules[where].removeprefix("lecture_") for where, _ in SCRIPTS.values()] == list(SCRIPTS)


def test_learn_shows_them():
    text = (ROOT / "docs" / "learn.md").read_text(encoding="utf-8")
    assert {name.removesuffix(".cu") for name in re.findall(r"python -m hybrid\.lectures (\w+)", text)} >= set(SCRIPTS) - {
        "ladder"
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_says_its_own_options(name, tmp_path):
    done = successful(start(LECTURES, name, "--help", cwd=tmp_path))
    assert done.stdout.startswith(f"usage: python -m hybrid.lectures {name} [-h]")


def test_what_a_lecture_says_and_how_it_ends_is_the_command_s(tmp_path):
    words = ["--launch", 150, 300, 16, 32]
    by_script = successful(start([sys.executable, ROOT / "scripts/lecture_pmpp.py"], *words, cwd=tmp_path))
    assert successful(start(LECTURES, "pmpp", *words, cwd=tmp_path)).stdout == by_script.stdout
    done = start(LECTURES, "pmpp", "--json", tmp_path)
    assert done.returncode not in (0, 1)
    assert "Traceback" not in done.stderr


def test_the_documents_programs_are_written_once(tmp_path):
    done = successful(start(LECTURES, "programs", cwd=tmp_path))
    files = {path.name: path.read_bytes() for path in (ROOT / "docs/programs").iterdir() if path.is_file()}
    assert done.stdout == f"programs: {', '.join(sorted(files))}\n"
    assert {path.name: path.read_bytes() for path in (tmp_path / "programs").iterdir()} == files
    (tmp_path / "programs" / "Makefile").write_text("mine")
    again = start(LECTURES, "programs", cwd=tmp_path)
    assert (again.returncode, again.stderr.count("\n"), "programs is there already" in again.stderr) == (2, 1, True)
    assert (tmp_path / "programs" / "Makefile").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]
    successful(start(LECTURES, "programs", "others", cwd=tmp_path))
    assert (tmp_path / "others" / "Makefile").read_bytes() == files["Makefile"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tiled.cu", "x"], "tiled.cu takes nothing more: not x"),
        (["programs", "a", "b"], "programs takes the name of a folder: not a b"),
        (["notebooks", "--force"], "notebooks takes the name of a folder: not --force"),
    ],
)
def test_words_that_nothing_takes_are_refused(words, said):
    with pytest.raises(UsageError, match=said):
        parse(words)


@pytest.mark.parametrize("name", ["programs", "tiled.cu"])
def test_help_of_what_has_no_options_is_the_command_s(name, capsys):
    with pytest.raises(SystemExit):
        parse([name, "--help"])
    assert "usage: python -m hybrid.lectures" in capsys.readouterr().out


def test_a_program_is_printed_as_it_stands():
    assert successful(start(LECTURES, "tiled.cu")).stdout == (ROOT / "docs/examples/tiled.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize(("word", "said"), [("sigel", "did you mean 'siegel'"), ("zzz", "one of pmpp, 2d, hochberg, siegel")])
def test_what_is_no_lecture_is_refused(word, said):
    with pytest.raises(UsageError, match=f"unknown lecture '{word}': {said}"):
        parse([word])


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package as a wheel puts it: the scripts and programs are a part of it, and no checkout lies around it."""
    site = tmp_path_factory.mktemp("site")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "hybrid", site / "hybrid", ignore=ignore)
    for source, part in (
        ("kernels", "kernels/cuda"),
        ("scripts", "scripts"),
        ("docs/examples", "classroom/examples"),
        ("docs/programs", "classroom/programs"),
        ("docs/course", "classroom/course"),
    ):
        shutil.copytree(ROOT / source, site / "hybrid" / part, ignore=ignore)
    return site


def run_installed(site: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run([*LECTURES, *words], capture_output=True, text=True, timeout=60, cwd=cwd, env=environment, check=False)


def test_an_installed_package_has_them_too(installed, tmp_path):
    done = run_installed(installed, "pmpp", "--launch", "150", "300", "16", "32", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "19×5  ceil(300 / 16) × ceil(150 / 32)" in done.stdout
    assert run_installed(installed, "tiled.cu", cwd=tmp_path).stdout == (ROOT / "docs/examples/tiled.cu").read_text("utf-8")


def test_an_installed_package_without_its_scripts_says_so(installed, tmp_path):
    site = tmp_path / "site"
    shutil.copytree(installed, site)
    shutil.rmtree(site / "hybrid" / "scripts")
    done = run_installed(site, "pmpp", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        f"hybrid.lectures: {site}/hybrid/scripts is missing: install this package again\n",
    )
