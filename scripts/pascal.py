# SPDX-License-Identifier: MIT
"""How large may Pascal's triangle be? `python scripts/pascal.py --help` says how to ask."""

from experiments.start import run

run("lectures.pascal")
