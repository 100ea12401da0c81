"""The exercises on multidimensional grids, here. `python scripts/lecture_pmpp.py --help` says how to ask."""

import sys

from experiments.start import run

sys.exit(run("lectures.pmpp"))
