# SPDX-License-Identifier: MIT
"""How large are the errors of products in every arithmetic? `python scripts/accuracy.py --help` says how to ask."""

from experiments.start import run

run("bench.accuracy")
