# SPDX-License-Identifier: MIT
"""With and without shared memory, the lecture's figures here. `python scripts/lecture_hochberg.py --help` says how to ask."""

from experiments.start import run

run("lectures.hochberg")
