# SPDX-License-Identifier: MIT
"""The errors in five teaching documents' CUDA programs, run without a GPU. `python scripts/bugs.py --help` says how to ask."""

from experiments.start import run

run("lectures.bugs")
