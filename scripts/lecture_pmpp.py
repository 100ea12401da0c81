# SPDX-License-Identifier: MIT
"""The exercises on multidimensional grids, here. `python scripts/lecture_pmpp.py --help` says how to ask."""

from experiments.start import run

run("lectures.pmpp")
