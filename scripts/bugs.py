"""The errors in five teaching documents' CUDA programs, run without a GPU. `python scripts/bugs.py --help` says how to ask."""

import sys

from experiments.start import run

sys.exit(run("kernel_checks.bugs"))
