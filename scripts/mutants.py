# SPDX-License-Identifier: MIT
"""Are faults in kernels found without a GPU? `python scripts/mutants.py --help` says how to ask."""

from experiments.start import run

run("kernel_checks.mutants")
