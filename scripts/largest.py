"""How large may matrices be? `python scripts/largest.py --help` says how to ask."""

import sys

from experiments.start import run

sys.exit(run("lectures.largest"))
