"""Matrix multiplication in three programs. `python scripts/lecture_siegel.py --help` says how to ask."""

import sys

from experiments.start import run

sys.exit(run("lectures.siegel"))
