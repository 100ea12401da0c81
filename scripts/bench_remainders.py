# SPDX-License-Identifier: MIT
"""How fast are the kernels of products from remainders? `python scripts/bench_remainders.py --help` says how to ask."""

from experiments.start import run

run("remainder_speed.cli")
