# SPDX-License-Identifier: MIT
"""What takes longer than 2 s shows how far it is (docs/use.md): on a terminal in a line that changes and goes away, in logs and
under mpirun in lines that come more and more seldom; what is shorter shows nothing."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys

import pytest
from support.commands import start, successful

pytestmark = pytest.mark.launcher

# Each multiplication takes so many seconds more, whatever the machine.
SLOW = """
import runpy, sys, time
import hybrid.testing
seconds = float(sys.argv.pop(1))
with hybrid.testing.plant("multiply", times=None, how=lambda *given: time.sleep(seconds)):
    runpy.run_module("hybrid.matmul", run_name="__main__", alter_sys=True)
"""
SIZES = ("3000", "4", "4", "--fill", "uniform", "--no-check", "--threads", "1")


@pytest.fixture
def slow(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    return lambda seconds: [sys.executable, tmp_path / "slow.py", str(seconds)]


@pytest.mark.parametrize("ranks", [0, 2])
def test_in_a_log_lines_tell_percent_rate_and_time_left(slow, ranks):
    done = successful(start(slow(1.2), *SIZES, ranks=ranks, limit=120, HYBRID_PANEL_ROWS="500", HYBRID_STAGED="1"))
    lines = [line for line in done.stderr.splitlines() if line.startswith("hybrid: multiply … ")]
    assert lines, done.stderr
    found = re.fullmatch(r"hybrid: multiply … (\d+) %, [\d.]+ [MGTk]?F/s, (\d+) s left", lines[0])
    assert found, lines
    assert 0 < int(found[1]) < 100
    assert len(lines) <= 3
    assert "…" not in done.stdout


def test_on_a_terminal_one_line_changes_and_goes_away(slow):
    main, side = pty.openpty()
    command = [*map(str, slow(0.9)), *SIZES]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=side, env={**os.environ, "HYBRID_PANEL_ROWS": "500", "HYBRID_STAGED": "1"}
    ) as job:
        os.close(side)
        shown = b""
        while True:
            try:
                more = os.read(main, 4096)
            except OSError:  # its other side is closed
                break
            if not more:
                break
            shown += more
        job.stdout.read()
    os.close(main)
    text = shown.decode()
    assert job.returncode == 0
    assert len(re.findall(r"\r\x1b\[Khybrid: multiply … \d+ %", text)) >= 3
    assert text.endswith("\r\x1b[K"), "nothing of it stays"
    assert "\n" not in text.replace("\r\n", "")


def test_what_is_short_shows_nothing_and_what_cannot_be_measured_shows_its_time(slow):
    done = successful(start(slow(0), *SIZES, "--json", "-", limit=120))
    wall = json.loads(done.stdout)["wall"]
    computing = sum(wall.get(part, 0) for part in ("allocate", "fill", "prepare", "product", "check", "write"))
    assert "…" not in done.stderr or computing >= 2
    done = successful(start(slow(4.2), "8", "4", "4", "--no-check", limit=120))
    assert re.search(r"^hybrid: (\w+ … \d+ s|multiply … 0 %, \d+ s so far)", done.stderr, re.MULTILINE), done.stderr
