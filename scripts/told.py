"""What a program that failed has told, among the lines that its launcher adds."""

from __future__ import annotations

import re

_ERROR = re.compile(r"hybrid\.|[\w.]*(Error|Exception)\b")


def last_error(*streams: str) -> str:
    """The last line that tells an error, of the first stream that has any lines; else its last line."""
    for text in streams:
        lines = text.strip().splitlines()
        told = [line for line in lines if _ERROR.match(line)]
        if lines:
            return (told or lines)[-1].strip()
    return "no word"
