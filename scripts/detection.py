# SPDX-License-Identifier: MIT
"""Which faults does the check find? `python scripts/detection.py --help` says how to ask."""

from experiments.start import run

run("bench.detection")
