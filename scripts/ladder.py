"""How fast is every kernel of the catalogue beside cuBLAS? `python scripts/ladder.py --help` says how to ask."""

import sys

from experiments.start import run

sys.exit(run("ladder.cli"))
