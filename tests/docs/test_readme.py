# SPDX-License-Identifier: MIT
"""What README and the pages of docs/ show works as it stands there, and what cannot be run says why.

```bash: every line is run, those of a block in one folder. ```python: run on 2 ranks if it uses mpi4py; a comment above it,
<!-- then: EXPRESSION -->, says what holds afterwards. ```text: something that was printed, or a listing. A comment
<!-- not run: REASON --> above a block leaves it out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from hybrid.commands.matmul_options import build_parser
from hybrid.core.settings import Settings
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.emulation.build import c_compiler, compiler
from hybrid.errors import DeviceUnavailable
from hybrid.ranks.launcher import mpirun

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "kernels/README.md", "slurm/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
LINKED = [*PAGES, *sorted((ROOT / "docs/course").glob("*.md")), ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
ENVIRONMENT_MAKERS = ("bash scripts/run.sh", "bash scripts/test.sh", "bash .ci/run")  # CI runs them
NOT_RUN = {
    "CONTRIBUTING.md": 1,
    "docs/benchmarks.md": 1,
    "docs/cluster.md": 3,
    "docs/learn.md": 3,
    "docs/packaging.md": 8,
    "docs/release.md": 2,
    "kernels/README.md": 1,
    "slurm/README.md": 1,
}

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


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page.relative_to(ROOT).as_posix(), text.count("\n", 0, found.start()) + 1, *(part or "" for part in found.groups()))
        for found in _BLOCK.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def shell_lines(block: Block) -> list[str]:
    lines = [line.partition(" #")[0].strip() for line in block.text.splitlines()]
    return [line for line in lines if line and not line.startswith(ENVIRONMENT_MAKERS)]


def shown_first() -> dict[Block, list[str]]:
    """For each block its lines that no block before it has: a command or program that two pages show is run once."""
    seen: set[str] = set()
    first = {}
    for block in BLOCKS:
        if block.comment != "not run" and block.language in ("bash", "python"):
            lines = shell_lines(block) if block.language == "bash" else [block.text]
            first[block] = [line for line in lines if line not in seen]
            seen.update(lines)
    return {block: lines for block, lines in first.items() if lines}


TO_RUN = shown_first()


def as_here(line: str) -> tuple[dict[str, str], list[str]]:
    """Environment and command, with this environment's python and mpirun and the repository's scripts."""
    environment, words = {}, shlex.split(line)
    while "=" in words[0]:
        name, _, environment[name] = words.pop(0).partition("=")
    launch = []
    if words[:2] == ["mpirun", "-n"]:
        launch, words = mpirun(int(words[2])), words[3:]
    assert words[0] == "python", f"how is this run? {line}"
    return environment, [
        *launch,
        sys.executable,
        *(str(ROOT / word) if word.startswith(("scripts/", "docs/")) else word for word in words[1:]),
    ]


def lacks(line: str) -> str:
    """Why the line cannot be run here."""
    try:
        if "--device cuda" in line:
            usable_gpus()
        if any(word in line for word in ("emulate", "scripts/", "hybrid.hello", "hybrid.lab", "hybrid.lectures")):
            compiler()
        if "--kernel loops" in line:
            c_compiler()
    except DeviceUnavailable as missing:
        return str(missing)
    formats = {".h5": "h5py", ".zarr": "zarr"}
    return ", ".join(package for ending, package in formats.items() if ending in line and not find_spec(package))


@pytest.mark.launcher
@pytest.mark.parametrize("block", [block for block in TO_RUN if block.language == "bash"], ids=str)
def test_commands(block, tmp_path):
    reasons = {line: reason for line in TO_RUN[block] if (reason := lacks(line))}
    for line in TO_RUN[block]:
        if line not in reasons:
            environment, command = as_here(line)
            done = subprocess.run(
                command, cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}"
    if reasons:
        pytest.skip("; ".join(f"{line}: {reason}" for line, reason in reasons.items()))


@pytest.mark.launcher
@pytest.mark.parametrize("block", [block for block in TO_RUN if block.language == "python"], ids=str)
def test_programs(block, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(f"{block.text}\nassert {block.said}\n", encoding="utf-8")
    ranks = mpirun(2) if "mpi4py" in block.text else []
    done = subprocess.run([*ranks, sys.executable, path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_is_run_or_says_why_not(block):
    assert block.language in ("bash", "python", "text")
    if block.language == "python":
        assert block.comment, "what holds afterwards?"
    if block.comment == "not run":
        assert len(block.said) > 10


def test_no_block_is_overlooked_and_few_are_not_run():
    for page in PAGES:
        fences = len(re.findall(r"^\s*```", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert fences == 2 * sum(block.page == page.relative_to(ROOT).as_posix() for block in BLOCKS), page
    not_run = [block.page for block in BLOCKS if block.comment == "not run"]
    assert {page: not_run.count(page) for page in not_run} == NOT_RUN


def test_every_option_and_setting_is_named():
    text = (ROOT / "docs" / "use.md").read_text(encoding="utf-8")
    options = {option for action in build_parser()._actions for option in action.option_strings if option.startswith("--")}
    missing = {option for option in options - {"--help"} if option not in text}
    missing |= {f"HYBRID_{name.upper()}" for name in Settings().as_dict() if f"HYBRID_{name.upper()}" not in text}
    assert not missing


def test_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert len(text.split()) < 1000


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
