# SPDX-License-Identifier: MIT
"""How fast is every kernel of the catalogue beside cuBLAS? `python scripts/ladder.py --help` says how to ask."""

from experiments.start import run

run("lectures.ladder")
