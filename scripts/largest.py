# SPDX-License-Identifier: MIT
"""How large may matrices be? `python scripts/largest.py --help` says how to ask."""

from experiments.start import run

run("lectures.largest")
