"""All figures of the lectures on one HTML page. `python scripts/report.py --help` says how to ask."""

import sys

from experiments.start import run

sys.exit(run("page.cli"))
