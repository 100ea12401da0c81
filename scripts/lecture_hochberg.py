"""With and without shared memory, the lecture's figures here. `python scripts/lecture_hochberg.py --help` says how to ask."""

import sys

from experiments.start import run

sys.exit(run("lectures.hochberg"))
