# SPDX-License-Identifier: MIT
"""A reader that leaves, as `head` does, is no failure: commands and scripts end quietly, with their work done; a full disk is
one; closed streams and any locale are no matter."""

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

import pytest
from support.commands import ROOT, start, successful
from support.matmul import LAST_LINE, MATMUL, code_in, doing, names_in
from support.selection import exhaustive

from hybrid.testing import mpirun

COMMANDS = [
    "hybrid", "hybrid.matmul 8 8 8 --print", "hybrid.matmul --help", "hybrid.matmul --kernel list",
    "hybrid.matmul 8 8 8 --explain", "hybrid.matmul 8 8 8 --json -", "hybrid.hello --device cpu",
    "hybrid.accept --level 1 --device cpu", "hybrid.paths ten --length 4", "hybrid.lab exercises", "hybrid.lab --help",
]  # fmt: skip


SCRIPTS = [f"scripts/{path.name} --help" for path in sorted((ROOT / "scripts").glob("*.py"))]
SHELL_SCRIPTS = ["scripts/run.sh --help", "scripts/test.sh --help", "scripts/on_gpu.sh --help", ".ci/run --list"]
ENDING = [*COMMANDS, *SCRIPTS, *SHELL_SCRIPTS]


def without_a_reader(*command, both=False, **more):
    """Run it with an output that nobody reads any more; with `both`, standard error is the same."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            command, stdout=writer, stderr=writer if both else subprocess.PIPE, text=True, timeout=120, check=False, **more
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize("words", exhaustive([COMMANDS[1], COMMANDS[2], COMMANDS[9], SCRIPTS[0], SHELL_SCRIPTS[0]], ENDING))
def test_a_command_or_script_ends_quietly(words):
    program, *options = words.split()
    command = [sys.executable, *([ROOT / program] if program.endswith(".py") else ["-m", program])]
    command = ["bash", ROOT / program] if words in SHELL_SCRIPTS else command
    done = without_a_reader(*command, *options)
    assert ("roken" in done.stderr, "Traceback" in done.stderr) == (False, False)
    assert words in SHELL_SCRIPTS or done.returncode == without_a_reader(*command, *options, both=True).returncode == 0


def test_files_are_written_and_a_failure_is_one_without_a_reader_too(tmp_path):
    done = without_a_reader(*MATMUL, "8", "8", "8", "--json", "run.jsonl", "--out", "C.npy", cwd=tmp_path)
    assert (done.returncode, done.stderr, names_in(tmp_path)) == (0, "", ["C.npy", "run.jsonl"])
    assert (tmp_path / "C.npy").stat().st_size > 512
    assert without_a_reader(*MATMUL, "8", "8", "8", "--a", "none.npy", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("unbuffered", exhaustive([["-u"]], [[], ["-u"]]))
def test_what_the_reader_took_before_it_left_is_whole(unbuffered):
    command = [sys.executable, *unbuffered, "-m", "hybrid.matmul", "300", "300", "300", "--print", "300"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        first = running.stdout.readline()
        running.stdout.close()
        said = running.stderr.read()
    assert first.startswith("C (300×300) = A (300×300) · B (300×300)")
    assert (running.returncode, said) == (0, "")


@pytest.mark.launcher
def test_ranks_end_quietly_whatever_the_launcher_does_then():
    """MPICH's mpirun is killed by its next write; Open MPI's goes on, or says in a line of its own that it aborts."""
    done = without_a_reader(*mpirun(2), *MATMUL, "300", "300", "300", "--print", "300")
    assert [line for line in done.stderr.splitlines() if "prterun: SIGPIPE detected" not in line] == []
    assert done.returncode in (0, 1, 141, -13)


@pytest.mark.parametrize(("command", "unbuffered"), [
    ("-m hybrid.matmul 8 8 8", ""), ("-m hybrid.matmul 8 8 8", "1"), ("-m hybrid.lab --help", ""),
    ("scripts/bench.py nodes --help", "1"),
])  # fmt: skip
def test_a_full_disk_is_still_a_failure_in_one_line(command, unbuffered):
    with open("/dev/full", "w") as full:
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        words, error = [sys.executable, *command.split()], subprocess.PIPE
        done = subprocess.run(words, cwd=ROOT, env=env, stdout=full, stderr=error, text=True, timeout=120, check=False)
    assert done.returncode in (1, 2)
    lines = [line for line in done.stderr.splitlines() if not re.match(r"hybrid: \w+ … ", line)]
    assert len(lines) == 1
    assert code_in(lines[0]) == "output-lost"


def test_any_locale_and_closed_streams(tmp_path):
    ascii_only = subprocess.run([*MATMUL, "8", "8", "8"], capture_output=True, timeout=120, check=False,
                                env={**os.environ, "PYTHONIOENCODING": "ascii"})  # fmt: skip
    assert LAST_LINE.fullmatch(ascii_only.stdout.decode("ascii").splitlines()[-1])
    for closing in (">&-", "2>&-", "<&- >&- 2>&-", "</dev/null >/dev/null"):
        command = ["bash", "-c", f'"$@" {closing}', "bash", *MATMUL, "8", "8", "8", "--out", "C.npy"]
        done = subprocess.run(command, timeout=120, check=False, cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, closing
        assert (tmp_path / "C.npy").read_bytes()[:6] == b"\x93NUMPY", closing
        (tmp_path / "C.npy").unlink()


# --- What takes longer than 2 s shows how far it is (docs/use.md): on a terminal in a line that changes and goes away, in
# logs and under mpirun in lines that come more and more seldom; what is shorter shows nothing


SIZES = ("3000", "4", "4", "--fill", "uniform", "--no-check", "--threads", "1")


@pytest.fixture
def slow(tmp_path):
    """Each multiplication takes so many seconds more, whatever the machine."""
    text = "import time\ndef now(*given): time.sleep({})\n"
    return lambda seconds: doing(text.format(seconds), "multiply times=None", tmp_path / "slow.py")


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", exhaustive([2], [0, 2]))
def test_in_a_log_lines_tell_percent_rate_and_time_left(slow, ranks):
    done = successful(start(slow(1.2), *SIZES, ranks=ranks, limit=120, HYBRID_PANEL_ROWS="500", HYBRID_STAGED="1"))
    lines = [line for line in done.stderr.splitlines() if line.startswith("hybrid: multiply … ")]
    assert lines, done.stderr
    found = re.fullmatch(r"hybrid: multiply … (\d+) %, [\d.]+ [MGTk]?F/s, (\d+) s left", lines[0])
    assert found, lines
    assert 0 < int(found[1]) < 100
    assert len(lines) <= 3
    assert "…" not in done.stdout


@pytest.mark.launcher
def test_on_a_terminal_one_line_changes_and_goes_away(slow):
    main, side = pty.openpty()
    command = [*slow(0.9), *SIZES]
    environment = {**os.environ, "HYBRID_PANEL_ROWS": "500", "HYBRID_STAGED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=side, env=environment) as job:
        os.close(side)
        shown = b""
        with suppress(OSError):  # its other side is closed
            while more := os.read(main, 4096):
                shown += more
        job.stdout.read()
    os.close(main)
    text = shown.decode()
    assert job.returncode == 0
    assert len(re.findall(r"\r\x1b\[Khybrid: multiply … \d+ %", text)) >= 3
    assert text.endswith("\r\x1b[K"), "nothing of it stays"
    assert "\n" not in text.replace("\r\n", "")


@pytest.mark.launcher
def test_what_is_short_shows_nothing_and_what_cannot_be_measured_shows_its_time(slow):
    done = successful(start(slow(0), *SIZES, "--json", "-", limit=120))
    wall = json.loads(done.stdout)["wall"]
    computing = sum(wall.get(part, 0) for part in ("allocate", "fill", "prepare", "product", "check", "write"))
    assert "…" not in done.stderr or computing >= 2
    done = successful(start(slow(4.2), "8", "4", "4", "--no-check", limit=120))
    assert re.search(r"^hybrid: (\w+ … \d+ s|multiply … 0 %, \d+ s so far)", done.stderr, re.MULTILINE), done.stderr
