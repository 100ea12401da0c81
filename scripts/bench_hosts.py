# SPDX-License-Identifier: MIT
"""How fast is the runner beside the program one writes by hand? `python scripts/bench_hosts.py --help` says how to ask."""

from experiments.start import run

run("bench.hosts")
