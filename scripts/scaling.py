# SPDX-License-Identifier: MIT
"""How does a product scale to many nodes? `python scripts/scaling.py --help` says how to ask."""

from experiments.start import run

run("bench.scaling")
