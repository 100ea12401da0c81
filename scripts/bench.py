# SPDX-License-Identifier: MIT
"""All benchmarks by name. `python scripts/bench.py` lists them; `python scripts/bench.py CASE --help` says how to ask."""

from experiments.start import run

run("bench.commands")
