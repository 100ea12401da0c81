"""Is the runner as fast on CPUs as NumPy alone? `python scripts/bench_cpu.py --help` says how to ask."""

import sys

from experiments.start import run

sys.exit(run("cpu"))
