"""Are faults in kernels found without a GPU? `python scripts/mutants.py --help` says how to ask."""

import sys

from experiments.start import run

sys.exit(run("kernel_checks.mutants"))
