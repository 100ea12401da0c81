# SPDX-License-Identifier: MIT
"""How fast are products of complex numbers and of integers? `python scripts/bench_types.py --help` says how to ask."""

from experiments.start import run

run("bench.products:types")
