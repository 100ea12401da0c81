# SPDX-License-Identifier: MIT
"""Is the runner as fast as the network between nodes? `python scripts/bench_nodes.py --help` says how to ask."""

from experiments.start import run

run("bench.nodes")
