# SPDX-License-Identifier: MIT
"""CUDA in two dimensions, the lecture's figures here. `python scripts/lecture_2d.py --help` says how to ask."""

from experiments.start import run

run("lectures.two_dimensions")
