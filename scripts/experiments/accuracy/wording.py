# SPDX-License-Identifier: MIT
"""Names and numbers as the tables of errors have them."""

from __future__ import annotations

from experiments.common.records import Line

MODES = ("auto", "fast")  # of --precision
NATIVE, CUBLAS = "native", "cublas"


def short(value: float) -> str:
    return f"{value:.2g}" if value else "0"


def pair(errors: list[float] | None) -> str:
    """Root mean square and maximum."""
    return " / ".join(map(short, errors)) if errors else "–"


def about_native(line: Line) -> str:
    return "one chain of multiply-adds" if line["device"] == "cpu" else "the kernel that auto chooses"
