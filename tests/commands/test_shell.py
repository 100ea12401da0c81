# SPDX-License-Identifier: MIT
"""Completion and manual pages, made from the commands' parsers."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess

import pytest
from support.commands import module, start, successful

from hybrid.__main__ import COMMANDS
from hybrid.commands import shell
from hybrid.kernels.catalogue import CATALOGUE

NAMES = list(COMMANDS)


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "completion.sh"
    path.write_text(successful(start(module("hybrid"), "completion")).stdout, encoding="utf-8")
    return path


@pytest.fixture
def completed(script):
    """What bash offers for the last of these words."""

    def offered(*words):
        program = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hybrid; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-c", program, script, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    return offered


@pytest.mark.parametrize(("words", "offered"), [
    (["hybrid-matmul", "--de"], ["--device"]),
    (["hybrid-matmul", "8", "8", "8", "--device", ""], ["auto", "cpu", "cuda", "emulate"]),
    (["/opt/env/bin/hybrid-matmul", "--device", "cu"], ["cuda"]),
    (["hybrid-matmul", "--device", "=", "em"], ["emulate"]),
    (["hybrid-matmul", "--device", "="], ["auto", "cpu", "cuda", "emulate"]),
    (["hybrid-matmul", "--on-fault", "r"], ["raise", "repair"]),
    (["hybrid-matmul", "--check", ""], ["on", "host", "off"]),
    (["hybrid-matmul", "--kernel", "til"], ["tiled", "tiled32"]),
    (["hybrid-matmul", "--out", ""], []),
    (["hybrid-matmul", "--repeat", ""], []),
    (["hybrid-paths", "t"], ["ten"]),
    (["hybrid-paths", "ten", "--le"], ["--length"]),
    (["hybrid-lab", "ch"], ["check"]),
    (["hybrid-lab", "run", "x.cu", "--kernel", ""], []),
    (["hybrid-lab", "run", "x.cu", "--siz"], ["--sizes"]),
    (["hybrid-lectures", "s"], ["siegel"]),
    (["hybrid-accept", "--level", ""], ["1", "2", "3", "4"]),
    (["hybrid-matmul", "zzz"], []),
])  # fmt: skip
def test_what_is_completed(completed, words, offered):
    assert completed(*words) == offered


@pytest.mark.needs("zsh")
@pytest.mark.parametrize(("words", "offered"), [
    (["hybrid-matmul", "--device", ""], "auto cpu cuda emulate"),
    (["hybrid-matmul", "--fill="], "--fill=lecture --fill=uniform --fill=normal --fill=index"),
    (["hybrid-lab", "run", "x.cu", "--kernel", ""], ""),
])  # fmt: skip
def test_zsh_completes_the_same(script, tmp_path, words, offered):
    """As it calls the function: emulating sh. Words are chosen among those that are offered by zsh itself."""
    program = 'emulate sh; source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hybrid; echo "${COMPREPLY[@]}"'
    zsh = ["zsh", "-f", "-c", program, script, *words]
    done = subprocess.run(zsh, capture_output=True, text=True, check=False, env={**os.environ, "ZDOTDIR": str(tmp_path)})
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", offered)


def test_every_option_and_kernel_is_offered(completed):
    for name in NAMES:
        parser = shell.parser_of(name)
        parts = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        for words, each in [([], parser), *(([part], of_part) for some in parts for part, of_part in some.items())]:
            options = {option for option in each._option_string_actions if option.startswith("--")}
            assert set(completed(f"hybrid-{name}", *words, "--")) == options, (name, words)  # and no other command's
    assert {kernel.name for kernel in CATALOGUE} < set(completed("hybrid-matmul", "--kernel", ""))


def test_every_command_is_registered(script):
    registered = subprocess.run(["bash", "-c", 'source "$0"; complete -p', script], capture_output=True, text=True, check=True)
    assert set(re.findall(r"hybrid-\w+", registered.stdout)) == {f"hybrid-{name}" for name in NAMES}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("man")
    said = successful(start(module("hybrid"), "man", folder)).stdout
    assert said.splitlines() == [str(folder / f"hybrid-{name}.1") for name in NAMES]
    return {name: (folder / f"hybrid-{name}.1").read_text(encoding="utf-8") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_all_that_help_has(pages, name):
    page = pages[name].replace("\\-", "-").replace("\\e", "\\")
    assert page.startswith(f'.TH HYBRID-{name.upper()} 1 "" "hybrid-runner ')
    sections = re.findall(r"^\.SH (.+)$", page, re.MULTILINE)
    assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    assert sections[-1] == "SEE ALSO"
    for part in shell._with_parts(shell.parser_of(name)):
        for option in part._option_string_actions:
            assert f"\\fB{option}\\fR" in page
        assert (part.epilog or "").strip().split("\n")[-1] in page


@pytest.mark.parametrize("name", NAMES)
def test_troff_takes_every_page_without_a_warning(pages, name):
    if shutil.which("groff") is None:
        pytest.skip("needs groff")
    done = subprocess.run(
        ["groff", "-K", "utf8", "-man", "-Tutf8", "-ww"], input=pages[name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "SEE ALSO" in re.sub(".\b", "", re.sub(r"\x1b\[[\d;]*m", "", done.stdout))


def test_lines_that_troff_would_take_for_requests_are_text():
    assert shell._text(".start\n'quote\nC:\\x --y") == "\\&.start\n\\&'quote\nC:\\ex \\-\\-y"


@pytest.mark.parametrize(("words", "said"), [
    (["completion", "bash"], "python -m hybrid completion takes nothing more"),
    (["man"], "python -m hybrid man takes the name of a folder"),
    (["man", "/none"], "/none is no folder"),
])  # fmt: skip
def test_wrong_usage(words, said):
    done = start(module("hybrid"), *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"hybrid: {said}\n")
