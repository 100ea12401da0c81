# SPDX-License-Identifier: MIT
"""`python -m hybrid` lists the commands; each has --help and --version, a program of its own, shell completion, and a manual
page."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, module, own_lines, start, successful
from support.forked import quickly
from support.matmul import LAST_LINE, MATMUL, code_in, names_in

import hybrid

NAMES = ("matmul", "hello", "doctor", "accept", "lab", "lectures", "paths", "run")
HYBRID = module("hybrid")


def said(*words):
    """What `python -m` and these words say."""
    done = successful(quickly([sys.executable, *words]))
    assert done.stderr == ""
    return done.stdout


def options_in(text):
    """Those in the first column of a help text."""
    return {word for line in re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE) for word in re.findall(r"--[a-z-]+", line)}


@pytest.fixture(scope="module")
def helps():
    """The help of each command, and of each of its own commands."""
    found = {}
    for name in NAMES:
        found[name] = said("-m", f"hybrid.{name}", "--help")
        parts = re.search(r"^  \{([\w,-]+)\}", found[name], re.MULTILINE)
        for part in parts[1].split(",") if parts else re.findall(r"^    (\w+)  ", found[name], re.MULTILINE):
            found[f"{name} {part}"] = said("-m", f"hybrid.{name}", part, "--help")
    return found


def test_the_package_lists_its_commands_and_their_versions():
    text = said("-m", "hybrid")
    assert f"hybrid-runner {hybrid.__version__}" in text
    assert tuple(re.findall(r"^  hybrid\.(\w+)  +\S", text, re.MULTILINE)) == NAMES
    assert {path.stem for path in (ROOT / "hybrid").glob("*.py") if "Entry of `python -m" in path.read_text()} == set(NAMES)
    assert all(said("-m", "hybrid", word) == text for word in ("--help", "-h", "help"))
    for word in ("completion", "man"):
        assert said("-m", "hybrid", word, "--help").startswith(f"usage: python -m hybrid {word}")
    version = f"hybrid-runner {hybrid.__version__}\n"
    assert said("-m", "hybrid", "--version") == version
    assert all(said("-m", f"hybrid.{name}", "--version") == version for name in NAMES)
    assert dir(hybrid) == sorted(hybrid.__all__)


def test_a_command_may_be_a_word_of_its_own():
    assert said("-m", "hybrid", "paths", "ten", "--version") == f"hybrid-runner {hybrid.__version__}\n"
    kernels = said("-m", "hybrid", "matmul", "--kernel", "list")
    assert kernels == said("-m", "hybrid.matmul", "--kernel", "list")
    names = [line.split()[0] for line in kernels.splitlines()]
    assert {"blas", "naive", "tiled", "tensor", "cublas"} <= set(names)
    assert len(names) == len(set(names))


WRONG = {  # of each command: the options, the code, and a word of the line
    "hybrid": [("matmull", "setting", "'matmul'?"), ("--quiet", "setting", "matmul, hello"), ("zzz", "setting", "matmul, hello"),
        ("completion bash", "usage", "completion"), ("man", "usage", "folder"), ("man /none", "file-missing", "/none")],
    "hybrid.matmul": [("8 8 8 --json=", "option", "--json"), ("8 8 8 --trace=", "option", "--trace")],
    "hybrid.accept": [("--minutes -1", "number"), ("--expect-gpus -1", "number"), ("--minutes nan", "number"),
        ("--minutes soon", "number"), ("--level 5", "setting"), ("--jsn x", "option"), ("--device tpu", "setting"),
        ("--json none/lines", "file-missing"), ("--device cuda", "no-gpu")],
    "hybrid.doctor": [("--json=", "option", "--json"), ("--jsn", "option"), ("8", "option"), ("--threads x", "number"),
        ("--json /nowhere/at/all", "file-missing")],
    "hybrid.hello": [("--blocks 0", "number"), ("--blocks 1000000000", "number"),
        ("--blocks 65 --threads-per-block 1024", "number"), ("--blocks x", "number"), ("--threads-per-block 1025", "number"),
        ("--threads 1000000", "number"), ("--block 3", "option"), ("8", "option"), ("--device gpu", "setting"),
        ("--device cuda", "no-gpu")],
    "hybrid.run": [("", "usage"), ("none.py", "file-missing"), ("--treshold 1 x.py", "option"), ("--threshold x y", "number")],
    "hybrid.paths": [("ten --length 4 --out=", "option", "--out"), ("ten", "option"), ("ten --length x", "number"),
        ("ten --length -1", "number"), ("ten --length 4 --from K", "setting"), ("ten --length 4 --to 0", "setting"),
        ("eleven --length 4", "file-missing"), ("eleven --length 4 --out none/c.csv", "file-missing", "none"),
        ("eleven --length 4 --picture none/c.svg", "file-missing", "none"), ("eleven --length 4 --picture c", "file-kind"),
        ("ten --length 4 --directed", "option-combination"), ("ten --length 4 --out c.txt", "file-kind"),
        ("ten --length 4 --out none/c.csv", "file-missing"), ("ten --length 4 --out c.csv --from A", "option-combination"),
        ("ten --length 1000000000000", "too-long"),
        ("ten --length 4 --kernel blass", "setting"), ("ten --lenght 4", "option"),
        ("ten --length 4 --list", "option-combination"), ("ten --length 4 --terms --from A", "option-combination"),
        ("ten --length 1001 --list --from C --to J", "number"), ("ten --length 0 --terms --from C --to J", "number"),
        ("ten --length 9 --list --from C --to J", "number"),
        ("ten --length 4 --picture ten.png", "file-kind"), ("ten --length 4 --picture none/ten.svg", "file-missing")],
    "hybrid.lab": [("strat tiles", "setting", "'start'?"), ("dance", "setting", "run, exercises"),
        ("run x.cu --sise 3", "option", "--sizes?"), ("run x.cu --json=", "option", "--json"), ("run none.cu", "file-missing"),
        ("run", "option"), ("rum tiled", "setting"), ("run tiled --siezs 3 3 3", "option"), ("run tiled --sizes 3 3 x", "number"),
        ("run tiled --sizes 3 4 5", "sizes"), ("run tiled --sizes 600 600 600", "sizes"), ("run tiled --gpu gtx", "setting"),
        ("run tiled --kernel other", "lab-kernel"), ("run tiled --let Width=k", "lab-parameters"),
        ("run tiled --html x --json x", "same-file"), ("run tiled --html none/x", "file-missing"),
        ("run tiled --picture x.png", "file-kind"), ("run tiled -- 8", "option-combination"),
        ("run folder.cu", "file-unreadable"), ("run pipe.cu", "file-unreadable"), ("show tiled --width 17", "lab-shown"),
        ("show tiled --of 2,0", "number"), ("show tiled --of 2", "number"),
        ("show tiled --json -", "option"), ("gpus gtx", "option")],
    "hybrid.lectures": [("tiled.cu x", "usage"), ("programs a b", "usage"), ("notebooks --force", "usage"),
        ("sigel", "setting", "siegel"), ("zzz", "setting", "siegel"), ("pmpp --launch 9 9 64 32", "usage", "1024"),
        ("pascal --show 0", "number"), ("pascal --show 21", "usage"),
        ("pascal --show 8 --json x", "usage"), ("pascal --kernel blass", "setting"), ("bugs --bug none", "setting")],
}  # fmt: skip


@pytest.mark.needs("compiler")  # for what the lab loads first
@pytest.mark.parametrize(
    ("name", "options", "code", "word"),
    [(name, options, code, "".join(word)) for name, rows in WRONG.items() for options, code, *word in rows],
)
def test_wrong_usage_is_one_line_with_its_code_and_writes_nothing(tmp_path, name, options, code, word):
    (tmp_path / "folder.cu").mkdir()
    os.mkfifo(tmp_path / "pipe.cu")  # into which nobody writes
    (tmp_path / "lines.jsonl").write_text('{"schema": 1, "command": "largest"}\n')
    before = names_in(tmp_path)
    done = quickly(module(name), *options.split(), cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (1 if code == "no-gpu" else 2, "")
    *_, line = done.stderr.splitlines()  # below the graph of hybrid.paths
    assert name in line.partition(": ")[0]
    assert (code_in(line), word in line) == (code, True), line
    assert names_in(tmp_path) == before


@pytest.mark.launcher
def test_of_several_ranks_one_answers(tmp_path):
    for command in ([*MATMUL, "--version"], [*MATMUL, "--kernel", "list"], HYBRID, [*HYBRID, "man", tmp_path], [*HYBRID, "man"]):
        several, alone = start(command, ranks=2), start(command)
        assert (several.stdout, own_lines(several.stderr)) == (alone.stdout, own_lines(alone.stderr))


@pytest.mark.needs("commands")
def test_the_program_of_its_own_is_the_command(tmp_path):
    for name in NAMES:
        assert Path(sys.executable).with_name(f"hybrid-{name}").exists()
    done = successful(start([Path(sys.executable).with_name("hybrid-matmul")], 8, 8, 8, cwd=tmp_path))
    assert LAST_LINE.fullmatch(done.stdout.splitlines()[-1])


def test_from_a_checkout_that_is_not_installed(tmp_path):
    """From its folder, and from another one by PYTHONPATH."""
    assert LAST_LINE.fullmatch(successful(start(MATMUL, 8, 8, 8, cwd=ROOT)).stdout.splitlines()[-1])
    shutil.copytree(ROOT / "hybrid", tmp_path / "site" / "hybrid", ignore=shutil.ignore_patterns("__pycache__"))
    where = start(
        [sys.executable, "-c", "import hybrid; print(hybrid.__file__)"], cwd=tmp_path, PYTHONPATH=str(tmp_path / "site")
    )
    assert where.stdout.startswith(str(tmp_path / "site"))


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "completion.sh"
    path.write_text(said("-m", "hybrid", "completion"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def completed(script):
    """What bash offers for the last word of each of these lists, by one start of bash."""

    def offered(*lists):
        ask = "\n".join(
            f"COMP_WORDS=({' '.join(repr(word) if word else chr(39) * 2 for word in words)}); COMP_CWORD={len(words) - 1}; "
            'COMPREPLY=(); _hybrid; printf "%s " "${COMPREPLY[@]}"; echo'
            for words in lists
        )
        done = subprocess.run(["bash", "-c", f'source "$0"\n{ask}', script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return [line.split() for line in done.stdout.splitlines()]

    return offered


OFFERED = [
    ("hybrid-matmul --de", "--device"), ("hybrid-matmul 8 8 8 --device ", "auto cpu cuda emulate"),
    ("/opt/env/bin/hybrid-matmul --device cu", "cuda"), ("hybrid-matmul --device = em", "emulate"),
    ("hybrid-matmul --device =", "auto cpu cuda emulate"), ("hybrid-matmul --on-fault r", "raise repair"),
    ("hybrid-matmul --check ", "on full host off"), ("hybrid-matmul --kernel til", "tiled tiled32"), ("hybrid-matmul --out ", ""),
    ("hybrid-matmul --repeat ", ""), ("hybrid-matmul zzz", ""), ("hybrid-paths t", "ten"),
    ("hybrid-paths ten --le", "--length"), ("hybrid-lab ch", "check"), ("hybrid-lab run x.cu --kernel ", ""),
    ("hybrid-lab run x.cu --siz", "--sizes"), ("hybrid-lectures s", "siegel"), ("hybrid-accept --level ", "1 2 3"),
]  # fmt: skip


def test_bash_completes_options_values_and_kernels(completed):
    found = completed(*(words.split(" ") for words, _ in OFFERED))
    assert dict(zip([words for words, _ in OFFERED], map(" ".join, found), strict=True)) == dict(OFFERED)


def test_every_option_of_every_command_is_completed_and_no_other(completed, helps):
    offered = completed(*([*f"hybrid-{name}".split(" "), "--"] for name in helps))
    assert dict(zip(helps, map(set, offered), strict=True)) == {name: options_in(text) for name, text in helps.items()}
    kernels = said("-m", "hybrid.matmul", "--kernel", "list").splitlines()
    assert {line.split()[0] for line in kernels} < set(*completed(["hybrid-matmul", "--kernel", ""]))


def test_every_command_is_registered(script):
    done = subprocess.run(["bash", "-c", 'source "$0"; complete -p', script], capture_output=True, text=True, check=True)
    assert set(re.findall(r"hybrid-(\w+)", done.stdout)) == set(NAMES)


@pytest.mark.needs("zsh")
@pytest.mark.parametrize(("words", "offered"), [
    ("hybrid-matmul --device ", "auto cpu cuda emulate"),
    ("hybrid-matmul --fill=", "--fill=lecture --fill=uniform --fill=normal --fill=index"),
    ("hybrid-lab run x.cu --kernel ", ""),
])  # fmt: skip
def test_zsh_completes_the_same(script, tmp_path, words, offered):
    """As it calls the function: emulating sh. Words are chosen among those that are offered by zsh itself."""
    program = 'emulate sh; source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hybrid; echo "${COMPREPLY[@]}"'
    zsh = ["zsh", "-f", "-c", program, script, *words.split(" ")]
    done = subprocess.run(zsh, capture_output=True, text=True, check=False, env={**os.environ, "ZDOTDIR": str(tmp_path)})
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", offered)


def test_a_manual_page_has_all_that_help_has_and_troff_takes_it(tmp_path, helps):
    assert successful(start(HYBRID, "man", tmp_path)).stdout.split() == [str(tmp_path / f"hybrid-{name}.1") for name in NAMES]
    for name in NAMES:
        page = (tmp_path / f"hybrid-{name}.1").read_text(encoding="utf-8")
        sections = re.findall(r"^\.SH (.+)$", page, re.MULTILINE)
        assert (sections[:3], sections[-1]) == (["NAME", "SYNOPSIS", "DESCRIPTION"], "SEE ALSO")
        plain = page.replace("\\-", "-").replace("\\e", "\\")
        wanted = {option for each, text in helps.items() if each.split()[0] == name for option in options_in(text)}
        assert wanted <= set(re.findall(r"\\fB(--[a-z-]+)\\fR", plain)), name
        if shutil.which("groff"):
            troff = ["groff", "-K", "utf8", "-man", "-Tutf8", "-ww"]
            done = subprocess.run(troff, input=page, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), name
            shown = re.sub(".\b", "", re.sub(r"\x1b\[[\d;]*m", "", done.stdout))
            assert "SEE ALSO" in shown
            assert all(option in shown for option in wanted)
