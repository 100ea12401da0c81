# SPDX-License-Identifier: MIT
"""How far a long run is: what is shown, where, and when."""

from __future__ import annotations

import io
import re
import sys
import threading
import time

import pytest
from support.commands import start, successful

from hybrid.core.text import duration
from hybrid.reporting import progress as progress_module
from hybrid.reporting.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def shown(stream):
    """The lines; on a terminal one after the other."""
    return [line for line in re.split(r"\r\x1b\[K|\n", stream.getvalue()) if line]


def test_a_short_run_shows_nothing(clock):
    stream = io.StringIO()
    progress = Progress(stream)
    for phase in ("fill", "multiply"):
        for done in range(5):
            clock.now += 0.19
            progress(phase, done, 5)
    progress.close()
    assert stream.getvalue() == ""


def test_percent_rate_and_time_left(clock):
    stream = io.StringIO()
    progress = Progress(stream, rate=lambda phase, seconds: f"{120 / seconds:g} of {phase} a second")
    progress("multiply", 0, 4)
    clock.now += 3
    progress("multiply", 1, 4)
    clock.now += 6
    progress("multiply", 3, 4)
    assert shown(stream) == [
        "hybrid: multiply … 25 %, 10 of multiply a second, 9 s left",
        "hybrid: multiply … 75 %, 10 of multiply a second, 3 s left",
    ]


def test_a_note_ends_every_line(clock):
    stream, notes = io.StringIO(), iter([", 3 of 9 rows", ", 6 of 9 rows"])
    progress = Progress(stream, note=lambda: next(notes))
    for done in (1, 2):
        clock.now += 8
        progress("multiply", done, 2)
    assert [line.rsplit(", ", 1)[1] for line in shown(stream)] == ["3 of 9 rows", "6 of 9 rows"]


def test_the_time_left_runs_down_while_nothing_is_told(clock):
    terminal = Terminal()
    progress = Progress(terminal)
    progress("multiply", 0, 2)
    clock.now += 10
    progress("multiply", 1, 2)
    for _ in range(3):
        clock.now += 4
        progress.tick()
    assert shown(terminal) == [
        "hybrid: multiply … 50 %, 10 s left",
        "hybrid: multiply … 50 %, 6 s left",
        "hybrid: multiply … 50 %, 2 s left",
        "hybrid: multiply … 50 %",
    ]
    progress.close()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_of_repeated_products_all_count(clock):
    stream = io.StringIO()
    progress = Progress(stream, repeats=3, rate=lambda phase, seconds: f"{60 / seconds:g}/s")
    for _ in range(3):
        for done in range(2):
            progress("multiply", done, 2)
            clock.now += 6
    assert shown(stream) == [
        "hybrid: multiply … 17 %, 5/s, 30 s left",
        "hybrid: multiply … 33 %, 24 s left",
        "hybrid: multiply … 50 %, 5/s, 18 s left",
        "hybrid: multiply … 67 %, 12 s left",
        "hybrid: multiply … 83 %, 5/s, 6 s left",
    ]


def test_before_anything_is_done_the_time_is_told(clock):
    stream = io.StringIO()
    progress = Progress(stream)
    progress("multiply", 0, 4)
    clock.now += 4
    progress.tick()
    assert shown(stream) == ["hybrid: multiply … 0 %, 4 s so far"]


def test_what_tells_no_numbers_is_shown_with_its_time(clock):
    stream, part = io.StringIO(), ["product"]
    progress = Progress(stream, part=lambda: part[0])
    progress("multiply", 1, 4)
    part[0] = "check"
    progress.tick()
    clock.now += 7
    progress.tick()
    part[0] = "product"
    clock.now += 7
    progress("multiply", 2, 4)
    assert shown(stream) == ["hybrid: check … 7 s", "hybrid: multiply … 50 %, 14 s left"]


def test_in_a_log_lines_come_more_and_more_seldom(clock):
    stream = io.StringIO()
    progress = Progress(stream)
    for done in range(36000):
        progress("multiply", done, 36000)
        clock.now += 0.1
    lines = shown(stream)
    assert 15 < len(lines) < 60
    assert lines[1] == "hybrid: multiply … 0 %, 60 min left"  # after 7 s
    assert len([line for line in lines if int(re.search(r"(\d+) %", line)[1]) >= 50]) <= 7


def test_a_terminal_is_refreshed_twice_a_second(clock):
    terminal = Terminal()
    progress = Progress(terminal)
    for done in range(100):
        progress("multiply", done, 100)
        clock.now += 0.125
    assert len(shown(terminal)) == (100 - 16) / 4


def test_within_the_context_a_silent_run_is_shown(monkeypatch):
    monkeypatch.setattr(progress_module, "PATIENCE", 0.0)
    told = threading.Event()

    class Stream(io.StringIO):
        def write(self, text):
            told.set()
            return super().write(text)

    stream = Stream()
    with Progress(stream, part=lambda: "allocate"):
        assert told.wait(20)
    assert shown(stream)[0].startswith("hybrid: allocate … ")
    assert "progress" not in [thread.name for thread in threading.enumerate()]


def test_a_stream_that_fails_ends_the_showing_and_nothing_else(monkeypatch):
    monkeypatch.setattr(progress_module, "PATIENCE", 0.0)
    stream = io.StringIO()
    with Progress(stream) as progress:
        stream.close()
        deadline = time.monotonic() + 20
        while progress._ticking.is_alive():
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (12.4, "12 s"), (99.4, "99 s"), (99.6, "2 min"), (3600, "60 min"), (5969, "99 min"), (6000, "1.7 h")],
)
def test_durations_have_two_digits(seconds, text):
    assert duration(seconds) == text


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [0, 2])
def test_a_product_of_some_seconds_is_shown_in_a_log(ranks):
    """Whatever the machine: each of the panels of rows takes more than a second."""
    slow = "import time, hybrid.devices.cpu as cpu; cpu.blas = lambda a, b, c: (time.sleep(1.2), c.fill(a.shape[1]))"
    program = f"{slow}; import sys; from hybrid.matmul import main; sys.exit(main())"
    sizes = ["3000", "4", "4", "--fill", "uniform", "--no-check", "--threads", "1"]
    done = successful(start([sys.executable, "-c", program], *sizes, ranks=ranks, HYBRID_PANEL_ROWS="500"))
    lines = [line for line in done.stderr.splitlines() if line.startswith("hybrid: multiply … ")]
    assert lines, done.stderr
    assert re.fullmatch(r"hybrid: multiply … \d+ %, [\d.]+ [MGT]F/s, \d s left", lines[0]), lines
