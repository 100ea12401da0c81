# SPDX-License-Identifier: MIT
"""What README and the pages of docs/ show works as it stands there, and what cannot be run says why.

```bash: each line is run, a block in one folder. ```console, ```pycon: sessions of a shell and of Python. ```python: on 2
ranks if it uses mpi4py; a comment above it, <!-- then: EXPRESSION -->, says what holds afterwards. ```text: something that was
printed, or a listing. A comment <!-- not run: REASON --> above a block leaves it out.
"""

import os
import re
import shlex
import sys
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import ROOT, start, successful
from support.needs import lacking

import hybrid.testing

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "kernels/README.md", "slurm/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
LINKED = [*PAGES, *sorted((ROOT / "docs/course").glob("*.md")), ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
ENVIRONMENT_MAKERS = ("bash scripts/run.sh", "bash scripts/test.sh", "bash .ci/")  # CI runs them
DEFAULT = ("README.md", "docs/testing.md")  # the others with --all
LIMIT = 600  # seconds of a command that compiles a dozen kernels on a busy machine

_BLOCK = re.compile(r"(?:^<!-- (then|not run): (.+) -->\n)?^```(.*)\n((?:.*\n)*?)^```$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    comment: str  # "then", "not run" or nothing
    said: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        lines = [line.partition(" #")[0].strip() for line in self.text.splitlines()]
        return [line for line in lines if line and not line.startswith(ENVIRONMENT_MAKERS)]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(name, text.count("\n", 0, found.start()) + 1, *(part or "" for part in found.groups()))
        for found in _BLOCK.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def shown_first(language: str) -> list:
    """Each block with its lines that no block before it has: a command or program that two pages show is run once."""
    seen, first = set(), []
    for block in BLOCKS:
        if block.comment != "not run" and block.language == language:
            lines = [line for line in (block.commands if language == "bash" else [block.text]) if line not in seen]
            seen.update(lines)
            if lines:
                marks = [] if block.page in DEFAULT else [pytest.mark.exhaustive]
                first.append(pytest.param(block, lines, id=str(block), marks=marks))
    return first


def lacks(line: str) -> str:
    """Why the line cannot be run here."""
    needs = {"--device cuda": "gpu", "--kernel loops": "c compiler", "hybrid.run": "c compiler", ".h5": "h5py", ".zarr": "zarr"}
    needs |= dict.fromkeys(("emulate", "scripts/", "hybrid.hello", "hybrid.lab", "hybrid.lectures"), "compiler")
    return ", ".join({missing for word, thing in needs.items() if word in line and (missing := lacking(thing))})


@pytest.mark.launcher
@pytest.mark.timeout(2000)
@pytest.mark.parametrize(("block", "lines"), shown_first("bash"))
def test_commands(block, lines, tmp_path):
    """With this environment's python and mpirun, and the repository's scripts."""
    for line in lines:
        if lacks(line):
            continue
        environment, words, ranks = {}, shlex.split(line), 0
        while "=" in words[0]:
            name, _, environment[name] = words.pop(0).partition("=")
        if words[:2] == ["mpirun", "-n"]:
            ranks, words = int(words[2]), words[3:]
        assert words[0] == "python", f"how is this run? {line}"
        words = [str(ROOT / word) if word.startswith(("scripts/", "docs/")) else word for word in words[1:]]
        done = start([sys.executable, *words], ranks=ranks, cwd=tmp_path, limit=LIMIT, **environment)
        assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.launcher
@pytest.mark.parametrize(("block", "lines"), shown_first("python"))
def test_programs(block, lines, tmp_path):
    (tmp_path / "program.py").write_text(f"{block.text}\nassert {block.said}\n", encoding="utf-8")
    successful(
        start([sys.executable, tmp_path / "program.py"], ranks=2 if "mpi4py" in block.text else 0, cwd=tmp_path, limit=LIMIT)
    )


@pytest.mark.parametrize(("block", "lines"), shown_first("pycon"))
def test_sessions(block, lines, tmp_path):
    """As Python answers to each line."""
    (tmp_path / "session.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = successful(start([sys.executable, "-m", "doctest", tmp_path / "session.txt"], limit=LIMIT))
    assert done.stdout == ""


@pytest.mark.launcher
@pytest.mark.needs("compiler")
@pytest.mark.parametrize(("block", "lines"), shown_first("console"))
def test_consoles(block, lines, tmp_path):
    """What stands below a line that begins with $ is printed by it."""
    for command, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", lines[0], re.MULTILINE):
        ours = re.sub(r"mpirun -n (\d+)", lambda found: shlex.join(map(str, hybrid.testing.mpirun(int(found[1])))), command)
        done = start(["bash", "-c", ours.replace("python ", f"{sys.executable} ")], cwd=tmp_path, limit=LIMIT)
        assert done.stdout.endswith(printed), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_run_or_says_why_not(page):
    blocks = blocks_of(page)
    assert len(re.findall(r"^\s*```", page.read_text(encoding="utf-8"), re.MULTILINE)) == 2 * len(blocks)  # none is overlooked
    for block in blocks:
        assert block.language in ("bash", "console", "python", "pycon", "text"), block
        assert block.language != "python" or block.comment, f"{block}: what holds afterwards?"
        assert block.comment != "not run" or len(block.said) > 10, block
    not_run = sum(block.comment == "not run" for block in blocks)
    assert not_run <= (8 if "packaging" in page.name else 3)


def test_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 900


def test_every_option_of_the_command_is_on_its_page():
    text = (ROOT / "docs" / "use.md").read_text(encoding="utf-8")
    options = set(
        re.findall(r"(?<![\w-])--[a-z][\w-]+", successful(start([sys.executable, "-m", "hybrid.matmul"], "--help")).stdout)
    )
    assert len(options) > 30
    assert {option for option in options - {"--help"} if option not in text} == set()


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    """Anchors too: a strict build of the site checks the same."""
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        there = page.parent / target if target else page
        assert there.exists(), target
        if anchor:
            text = there.read_text(encoding="utf-8")
            titles = [re.sub(r"[^\w\- ]", "", title).strip().lower() for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
            assert anchor in [re.sub(r"[\s-]+", "-", title) for title in titles] or f'id="{anchor}"' in text, f"{target}#{anchor}"


# --- what stands in several files says the same in all of them

PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
OF_SEVERAL_MAJORS = {"cuda-toolkit", "cuda-bindings"}  # 12 and 13 under one name: no line can hold both


def test_versions_are_those_of_the_constraints_and_of_the_citation():
    pinned = re.findall(r"[\w-]+==[\w.]+", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert pinned
    assert [pin for pin in pinned if pin not in PINS] == []
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    wanted = "\n".join([setup["options"]["install_requires"], *setup["options.extras_require"].values()])
    names = {re.split(r"[\[<>=]", line)[0] for line in wanted.splitlines() if line}
    assert names - {pin.partition("==")[0] for pin in PINS} == OF_SEVERAL_MAJORS
    assert f"\nversion: {hybrid.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.exhaustive
def test_without_a_compiler_the_pages_commands_that_need_none_work(tmp_path):
    """docs/course/index.md, no compiler at all: paths, products and launches with Python alone."""
    nothing = {"PATH": os.fspath(tmp_path), "CXX": "", "CC": ""}
    for words in (
        ["hybrid.paths", "ten", "--length", "3"],
        ["hybrid.matmul", "30", "20", "40", "--device", "cpu"],
        ["hybrid.lectures", "pmpp", "--launch", "70", "200", "32", "16"],
    ):
        successful(start([sys.executable, "-m", *words], cwd=tmp_path, limit=LIMIT, **nothing))
