# SPDX-License-Identifier: MIT
"""All figures of the lectures on one HTML page. `python scripts/report.py --help` says how to ask."""

from experiments.start import run

run("lectures.report")
