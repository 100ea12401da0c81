# SPDX-License-Identifier: MIT
"""Jobs that are killed, stopped and starved at random: does each end, soon and by a line? `python scripts/ordeal.py --help`."""

from experiments.start import run

run("ordeal.trials:Ordeal.main")
