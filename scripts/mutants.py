# SPDX-License-Identifier: MIT
"""Do the tests find planted faults? `python scripts/mutants.py --help` says how to ask."""

from experiments.start import run

run("checks.mutants")
