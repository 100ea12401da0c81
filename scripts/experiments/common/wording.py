# SPDX-License-Identifier: MIT
"""Numbers and errors as people read them; bytes are hybrid.core.text's."""

import re

OURS = re.compile(r"hybrid(\.\w+)?: (?!\w+( of product \d+)? …)")  # the others are progress
_ERROR = re.compile(r"hybrid\.|[\w.]*(Error|Exception)\b")


def number(value: float) -> str:
    """40,505 or 24.34."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """1.234 ms, 12.34 s, 1.5 h."""
    for least, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if seconds >= least:
            return f"{seconds / least:.4g} {unit}"
    return f"{seconds * 1e6:.4g} µs"


def told_error(*streams: str) -> str:
    """Of what a program that failed has printed, beside its launcher: all lines of ours, else the last that tells an error,
    of the first stream that has any lines; else its last line."""
    for text in streams:
        lines = [line.strip() for line in text.replace("\0", "").strip().splitlines()]
        ours = [line for line in lines if OURS.match(line)]
        errors = [line for line in lines if _ERROR.match(line)]
        if lines:
            return "; ".join(ours) if ours else (errors or lines)[-1]
    return "no message"
