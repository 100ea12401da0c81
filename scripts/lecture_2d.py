"""CUDA in two dimensions, the lecture's figures here. `python scripts/lecture_2d.py --help` says how to ask."""

import sys

from experiments.start import run

sys.exit(run("lectures.two_dimensions"))
