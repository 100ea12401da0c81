# SPDX-License-Identifier: MIT
"""How fast are products from remainders beside cuBLAS? `python scripts/bench_precision.py --help` says how to ask."""

from experiments.start import run

run("bench.products:precision")
