# SPDX-License-Identifier: MIT
"""What does the check of every product cost? `python scripts/bench_check.py --help` says how to ask."""

from experiments.start import run

run("bench.products:check")
