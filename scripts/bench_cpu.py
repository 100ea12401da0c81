# SPDX-License-Identifier: MIT
"""Is the runner as fast on CPUs as NumPy alone? `python scripts/bench_cpu.py --help` says how to ask."""

from experiments.start import run

run("bench.cpu")
