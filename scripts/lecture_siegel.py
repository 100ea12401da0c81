# SPDX-License-Identifier: MIT
"""Matrix multiplication in three programs. `python scripts/lecture_siegel.py --help` says how to ask."""

from experiments.start import run

run("lectures.siegel")
