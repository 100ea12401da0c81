"""How large may Pascal's triangle be? `python scripts/pascal.py --help` says how to ask."""

import sys

from experiments.start import run

sys.exit(run("lectures.pascal"))
